package pglocal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is the operating system's user that PostgreSQL runs as.
type account struct {
	name string
	uid  int
	gid  int
	// other is set when it is not the user we run as, which only root may ask for.
	other bool
}

// attributes are what a process of this user is started with: a session of its
// own, away from our terminal's signals.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.other {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// give makes an open file this user's.
func (a account) give(f *os.File) error {
	if !a.other {
		return nil
	}
	return f.Chown(a.uid, a.gid)
}

// canUse reports whether the user can enter dir and write there.
func (a account) canUse(dir string) bool {
	cmd := exec.Command("/bin/sh", "-c", "test -x . && test -w .")
	cmd.Dir = dir // entered as that user: the change of user comes first
	cmd.SysProcAttr = a.attributes()
	return cmd.Run() == nil
}

// ourselves is the account of this process.
func ourselves() account {
	a := account{name: "uid " + strconv.Itoa(os.Geteuid()), uid: os.Geteuid(), gid: os.Getegid()}
	if u, err := user.LookupId(strconv.Itoa(a.uid)); err == nil {
		a.name = u.Username
	}
	return a
}

// unprivileged picks whom root's server runs as: the wanted user, else postgres,
// else nobody.
func unprivileged(wanted string) (account, error) {
	names := []string{"postgres", "nobody"}
	if wanted != "" {
		names = []string{wanted}
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		return fromUser(u)
	}
	return account{}, fmt.Errorf("PostgreSQL does not run as root, and this machine has no user %q to run it as", names)
}

func fromUser(u *user.User) (account, error) {
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", u.Username, err)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", u.Username, err)
	}
	if uid == 0 {
		return account{}, errors.New("PostgreSQL does not run as root")
	}
	return account{name: u.Username, uid: uid, gid: gid, other: uid != os.Geteuid()}, nil
}

// owner is the account that owns a file.
func owner(info os.FileInfo) account {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ourselves()
	}
	a := account{name: "uid " + strconv.Itoa(int(stat.Uid)), uid: int(stat.Uid), gid: int(stat.Gid)}
	if u, err := user.LookupId(strconv.Itoa(a.uid)); err == nil {
		a.name = u.Username
	}
	a.other = a.uid != os.Geteuid()
	return a
}
