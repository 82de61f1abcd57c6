package settings

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// ErrHelp is what Parse returns when help was asked for and has been given.
var ErrHelp = errors.New("help was asked for")

// Error lists everything that is wrong with the settings, a line each, which
// begins with the setting's name. It holds no value of any setting.
type Error struct{ Faults []error }

func (e *Error) Error() string { return errors.Join(e.Faults...).Error() }

// Unwrap are the faults.
func (e *Error) Unwrap() []error { return e.Faults }

// Check gathers faults. They name the setting and never quote its value. The
// zero value has found none.
type Check struct{ Faults []error }

// Bad notes a fault of a setting.
func (c *Check) Bad(name, format string, args ...any) {
	c.Faults = append(c.Faults, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

// Err is an *Error of all faults, or nil.
func (c *Check) Err() error {
	if len(c.Faults) == 0 {
		return nil
	}
	return &Error{c.Faults}
}

// Parse fills flags, a pointer to a struct of texts with kong's tags, from args
// (without the program's name) and the environment. An argument that cannot be
// read is a fault, and the others are read all the same. The errors are ErrHelp,
// once help has gone to stdout, and an *Error where nothing could be read.
func (c *Check) Parse(flags any, program, description string, args []string, stdout io.Writer) error {
	help := false
	parser, err := kong.New(flags, kong.Name(program), kong.Description(description),
		kong.Writers(stdout, io.Discard), kong.Exit(func(int) { help = true }))
	if err != nil {
		return err
	}
	_, err = parser.Parse(args)
	if help {
		return ErrHelp
	}
	if err != nil {
		c.Bad("command line", "has an argument that is not known or lacks its value; see --help")
		if _, err := parser.Parse(nil); err != nil {
			return c.Err()
		}
	}
	return nil
}

// Text is a setting that must not be blank.
func (c *Check) Text(name, value string) string {
	if strings.TrimSpace(value) == "" {
		c.Bad(name, "is set but blank")
		return ""
	}
	return value
}

// Optional is a setting that may be left out, but not be set blank.
func (c *Check) Optional(name, value string) string {
	if _, set := os.LookupEnv(name); !set && value == "" {
		return ""
	}
	return c.Text(name, value)
}

// Secret is a setting that comes by environment alone and may be left out.
func (c *Check) Secret(name string) Secret {
	value, set := os.LookupEnv(name)
	if !set {
		return Secret{}
	}
	return NewSecret(c.Text(name, value))
}

// Duration is a duration between two bounds, which may be reached.
func (c *Check) Duration(name, value string, least, most time.Duration) time.Duration {
	if c.Text(name, value) == "" {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < least || d > most {
		c.Bad(name, "must be a duration from %s to %s, such as 30s", least, most)
		return 0
	}
	return d
}

// Integer is a whole number between two bounds, which may be reached.
func (c *Check) Integer(name, value string, least, most int) int {
	if c.Text(name, value) == "" {
		return 0
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		c.Bad(name, "must be a whole number from %d to %d", least, most)
		return 0
	}
	return n
}

// Level is a level of the log.
func (c *Check) Level(name, value string) slog.Level {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[value]
	if !ok {
		c.Bad(name, "must be debug, info, warn or error")
	}
	return level
}
