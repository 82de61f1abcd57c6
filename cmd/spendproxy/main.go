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

	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
)

// Exit codes: 0 after an ordered stop, 1 if the proxy failed, 2 if its
// configuration cannot be accepted.
const (
	exitFailed = 1
	exitConfig = 2
)

// gcPercent collects garbage less often than Go does by itself: the proxy lives
// in some twenty megabytes, and each call makes much that dies young.
const gcPercent = 300

func main() {
	cfg, err := config.Load(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, settings.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "spendproxy: the configuration cannot be accepted:\n%v\n", err)
		os.Exit(exitConfig)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if err := run(ctx, cfg, log); err != nil {
		log.Error("spendproxy stopped", "error", err)
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
