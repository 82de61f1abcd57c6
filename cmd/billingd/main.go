package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// Exit codes: 0 after an ordered stop, 1 if the service failed, 2 if its
// configuration cannot be accepted.
const (
	exitFailed = 1
	exitConfig = 2
)

// Garbage is collected less often than Go does by itself: the service lives in
// some twenty megabytes, and a run makes much that dies young. A large run keeps
// more, a hundred megabytes at most; so that it does not take four times as much,
// garbage is collected more often from the limit on.
const (
	gcPercent   = 300
	memoryLimit = 256 << 20 // bytes
)

// tuneMemory sets how garbage is collected, where GOGC and GOMEMLIMIT leave it
// open.
func tuneMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

func main() {
	cfg, err := config.Load(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, settings.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "billingd: the configuration cannot be accepted:\n%v\n", err)
		os.Exit(exitConfig)
	}
	tuneMemory(os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if !cfg.Crash.IsZero() {
		crashpoint.Arm(cfg.Crash)
		log.Warn("this process is armed for the selftest", "plan", cfg.Crash.String())
	}
	if err := run(ctx, cfg, log); err != nil {
		log.Error("billingd stopped", "error", err)
		os.Exit(exitFailed)
	}
}

func run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	app, err := Open(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer app.Close()
	return app.Run(ctx)
}
