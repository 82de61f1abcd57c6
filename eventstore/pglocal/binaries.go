package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// OldestMajor is the oldest PostgreSQL major version that is used.
const OldestMajor = 14

// BinDirEnv names the environment variable that says where the binaries are
// when Options.BinDir does not: the folder of postgres and initdb. Nothing else
// is looked at then.
const BinDirEnv = "BILLING_POSTGRES_BIN"

// ErrNoServer reports that no usable PostgreSQL binaries were found. The error
// that wraps it says where was looked, what was wrong there, and how to install
// a server.
var ErrNoServer = errors.New("no PostgreSQL server (version 14 or newer) found on this machine")

const howToInstall = "install one (apt-get install postgresql, dnf install postgresql-server, apk add postgresql, " +
	"brew install postgresql@17, or `make postgres` in the source folder), or set " + BinDirEnv +
	" to the folder that holds postgres and initdb"

// usualFolders are where packages put the binaries of one or several major
// versions, beside PATH and pg_config.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",                      // Debian, Ubuntu
	"/usr/pgsql-*/bin",                               // PostgreSQL's own packages for Red Hat
	"/usr/libexec/postgresql*",                       // Alpine
	"/usr/lib/postgresql*/bin",                       // SUSE
	"/opt/homebrew/opt/postgresql*/bin",              // Homebrew, Apple silicon
	"/usr/local/opt/postgresql*/bin",                 // Homebrew, Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin", // Homebrew, Linux
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin", // built from source
}

// binaries is one installed version.
type binaries struct {
	dir     string
	major   int
	version string
}

func (b binaries) postgres() string { return filepath.Join(b.dir, "postgres") }
func (b binaries) initdb() string   { return filepath.Join(b.dir, "initdb") }

// findBinaries returns the first usable version, or the one with the wanted
// major version if that is not 0. who must be able to run it.
func findBinaries(ctx context.Context, binDir string, major int, who account) (binaries, error) {
	dirs := candidates(ctx, binDir)
	var faults []string
	for _, dir := range dirs {
		found, err := inspect(ctx, dir, who)
		switch {
		case err != nil:
			faults = append(faults, fmt.Sprintf("%s: %v", dir, err))
		case found.major < OldestMajor:
			faults = append(faults, fmt.Sprintf("%s: version %s is too old", dir, found.version))
		case major != 0 && found.major != major:
			faults = append(faults, fmt.Sprintf("%s: version %s", dir, found.version))
		default:
			return found, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return binaries{}, err
	}
	if major != 0 {
		return binaries{}, fmt.Errorf("%w: the data was written by version %d, which must be installed to read it; found %s",
			ErrNoServer, major, orNothing(faults))
	}
	return binaries{}, fmt.Errorf("%w; found %s; %s", ErrNoServer, orNothing(faults), howToInstall)
}

func orNothing(faults []string) string {
	if len(faults) == 0 {
		return "nothing"
	}
	return strings.Join(faults, ", ")
}

// candidates lists the folders that hold a file named postgres, best first.
func candidates(ctx context.Context, binDir string) []string {
	if binDir == "" {
		binDir = os.Getenv(BinDirEnv)
	}
	if binDir != "" {
		return []string{binDir}
	}
	var dirs []string
	add := func(dir string) {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			add(dir)
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		add(strings.TrimSpace(string(out)))
	}
	for _, pattern := range usualFolders {
		found, _ := filepath.Glob(pattern) // the patterns are constants, and well formed
		slices.SortFunc(found, newestFirst)
		for _, dir := range found {
			add(dir)
		}
	}
	return dirs
}

var digits = regexp.MustCompile(`\d+`)

// newestFirst orders folders by the last number in their names.
func newestFirst(a, b string) int {
	number := func(dir string) int {
		all := digits.FindAllString(dir, -1)
		if len(all) == 0 {
			return 0
		}
		n, _ := strconv.Atoi(all[len(all)-1])
		return n
	}
	return number(b) - number(a)
}

// inspect asks the binaries in dir, as the user who will run them, for their
// version.
func inspect(ctx context.Context, dir string, who account) (binaries, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, errors.New("no initdb there")
	}
	b := binaries{dir: dir}
	cmd := exec.CommandContext(ctx, b.postgres(), "--version")
	cmd.Dir = "/"
	cmd.SysProcAttr = who.attributes()
	out, err := cmd.Output()
	if err != nil {
		return binaries{}, fmt.Errorf("%s cannot run it: %w", who.name, err)
	}
	// "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)", "postgres (PostgreSQL) 18beta1"
	_, rest, ok := strings.Cut(string(out), "(PostgreSQL) ")
	if !ok {
		return binaries{}, fmt.Errorf("it calls itself %q", strings.TrimSpace(string(out)))
	}
	b.version = strings.Fields(rest + " ")[0]
	b.major, err = strconv.Atoi(digits.FindString(b.version))
	if err != nil {
		return binaries{}, fmt.Errorf("it calls itself %q", strings.TrimSpace(string(out)))
	}
	return b, nil
}
