package pglocal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// rootHomes is where root's data goes when the server's user cannot enter the
// data directory.
const rootHomes = "/var/lib/billonce"

// homeLink is the name in the data directory of everything the server owns.
func homeLink(dataDir string) string { return filepath.Join(dataDir, "postgres") }

// home finds or makes the server's own folder and says whom the server runs as.
// The caller holds the data directory's lock.
func home(dataDir, wanted string) (string, account, error) {
	link := homeLink(dataDir)
	info, err := os.Stat(link)
	if errors.Is(err, fs.ErrNotExist) {
		if target, err := os.Readlink(link); err == nil {
			return "", account{}, fmt.Errorf("%s leads to %s, which is gone; bring it back, or remove the link to start empty", link, target)
		}
		return makeHome(link, wanted)
	}
	if err != nil {
		return "", account{}, err
	}

	who := owner(info)
	switch {
	case who.uid == 0 && os.Geteuid() == 0: // we died between making it and giving it away
		if who, err = unprivileged(wanted); err != nil {
			return "", account{}, err
		}
		if err := os.Lchown(link, who.uid, who.gid); err != nil {
			return "", account{}, err
		}
	case who.other && os.Geteuid() != 0:
		return "", account{}, fmt.Errorf("%s belongs to %s; run as that user or choose another data directory", link, who.name)
	}
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return "", account{}, err
	}
	if !who.canUse(dir) {
		return "", account{}, fmt.Errorf("PostgreSQL runs as %s, who cannot enter %s; open the folders above it to that user", who.name, dir)
	}
	return dir, who, nil
}

// makeHome makes the folder at link, or, when root's server could not enter
// that, elsewhere with a link to it.
func makeHome(link, wanted string) (string, account, error) {
	who := ourselves()
	if who.uid == 0 {
		var err error
		if who, err = unprivileged(wanted); err != nil {
			return "", account{}, err
		}
	}
	if err := os.Mkdir(link, 0o700); err != nil {
		return "", account{}, err
	}
	if who.other {
		if err := os.Lchown(link, who.uid, who.gid); err != nil {
			return "", account{}, err
		}
	}
	if who.canUse(link) {
		dir, err := filepath.EvalSymlinks(link)
		return dir, who, err
	}
	if !who.other {
		return "", account{}, fmt.Errorf("%s cannot be written to", link)
	}
	if err := os.Remove(link); err != nil {
		return "", account{}, err
	}
	dir, err := makeElsewhere(who)
	if err != nil {
		return "", account{}, fmt.Errorf("PostgreSQL runs as %s, who cannot enter %s, and no other place could be made: %w",
			who.name, filepath.Dir(link), err)
	}
	if err := os.Symlink(dir, link); err != nil {
		return "", account{}, err
	}
	return dir, who, nil
}

func makeElsewhere(who account) (string, error) {
	if err := os.MkdirAll(rootHomes, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(rootHomes, "postgres-")
	if err != nil {
		return "", err
	}
	if err := os.Lchown(dir, who.uid, who.gid); err != nil {
		return "", err
	}
	if !who.canUse(dir) {
		os.Remove(dir)
		return "", fmt.Errorf("%s cannot enter %s", who.name, rootHomes)
	}
	return dir, nil
}

// lockDataDir makes the data directory if need be and returns its lock, not yet
// taken. The lock belongs to the directory's owner, so that root may come first
// and the owner later.
func lockDataDir(dataDir string) (lock, error) {
	if err := os.MkdirAll(dataDir, 0o755); err != nil {
		return lock{}, err
	}
	info, err := os.Stat(dataDir)
	if err != nil {
		return lock{}, err
	}
	who := owner(info)
	if os.Geteuid() != 0 {
		who = ourselves()
	}
	l, err := openLock(filepath.Join(dataDir, "postgres.lock"), who)
	if errors.Is(err, syscall.EACCES) {
		return lock{}, fmt.Errorf("%w: another user keeps a database there; run as that user or choose another data directory", err)
	}
	return l, err
}
