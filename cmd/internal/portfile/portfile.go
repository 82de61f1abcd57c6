// Package portfile tells others where a program listens, by a file: what starts
// programs on free ports waits for it.
package portfile

import (
	"errors"
	"fmt"
	"os"
)

// Write makes a file that others see whole or not at all.
func Write(path string, content []byte) error {
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}
