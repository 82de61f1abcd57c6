package pglocal

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A child between fork and exec holds every file that its parent has open. A
// lock that was dropped in that moment is free all the same.
func TestDroppedLockIsFreeWhileAChildHoldsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	held, err := openLock(path, account{})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := held.try(syscall.LOCK_SH); err != nil || !ok {
		t.Fatalf("the first taker: %t, %v", ok, err)
	}
	child, err := syscall.Dup(int(held.file.Fd())) // as a fork would
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	other, err := openLock(path, account{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.drop()
	if ok, err := other.try(syscall.LOCK_EX); err != nil || ok {
		t.Fatalf("while it is held: %t, %v", ok, err)
	}
	held.drop()
	held.drop()
	if ok, err := other.try(syscall.LOCK_EX); err != nil || !ok {
		t.Errorf("after the drop: %t, %v", ok, err)
	}
}
