package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/billonce/billonce/cmd/internal/portfile"
	"github.com/billonce/billonce/cmd/stripesim/sim"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200) // the demonstration shares two cores with everything else
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// grace is how long requests under way may take to end after a signal.
const grace = 10 * time.Second

// run is the program: it returns the exit status when ctx ends or the stand-in
// fails.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f flags
	exited := -1
	parser, err := kong.New(&f,
		kong.Name("stripesim"),
		kong.Description("A stand-in for Stripe: its idempotency rules, its faults, and a ledger of what really happened."),
		kong.Writers(stdout, stderr), kong.Exit(func(code int) { exited = code }))
	if err != nil {
		fmt.Fprintf(stderr, "stripesim: %v\n", err)
		return 1
	}
	_, err = parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		fmt.Fprintf(stderr, "stripesim: %v\n", err)
		return 2
	}
	c, err := configure(f)
	if err != nil {
		fmt.Fprintf(stderr, "stripesim: bad settings:\n%v\n", err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(stdout, nil))
	c.options.Log = log
	if err := serve(ctx, c, log); err != nil {
		fmt.Fprintf(stderr, "stripesim: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, c config, log *slog.Logger) (err error) {
	stripe, err := sim.New(c.options)
	if err != nil {
		return err
	}
	server, err := stripe.Listen(c.listen, c.controlListen, c.controlToken)
	if err != nil {
		stripe.Close()
		return err
	}
	log.Info("stripesim is listening", "api", server.APIURL, "control", server.ControlURL,
		"control_open", c.controlIsOpen, "data", c.options.Data, "webhooks", c.options.WebhookURL, "now", server.Now())
	if c.portFile != "" {
		content, _ := json.Marshal(map[string]any{"api": server.APIURL, "control": server.ControlURL, "pid": os.Getpid()})
		if err := portfile.Write(c.portFile, append(content, '\n')); err != nil {
			server.Close()
			return fmt.Errorf("write port file: %w", err)
		}
		defer os.Remove(c.portFile)
	}
	select {
	case <-ctx.Done():
		log.Info("stripesim is stopping")
	case <-server.Failed():
		err = server.Err()
	}
	// The signal has ended ctx; what is under way still gets its time.
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if stopped := server.Shutdown(shutdown); err == nil {
		err = stopped
	}
	return err
}
