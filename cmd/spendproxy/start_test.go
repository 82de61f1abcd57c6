package main

import (
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// A start that fails says why, gives back what it had, and tells no secret.
func TestAStartThatFails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dsn := pgtest.Empty(t)
	nobody := "postgres://user:MARKERPASSWORD@127.0.0.1:1/books?sslmode=disable"
	for _, c := range []struct{ what, dsn, listen, admin, want string }{
		{"no database", nobody, "127.0.0.1:0", "", "connection refused"},
		{"a port that is taken", dsn, taken.Addr().String(), "", "address already in use"},
		{"an admin port that is taken", dsn, "127.0.0.1:0", taken.Addr().String(), "address already in use"},
	} {
		ports := filepath.Join(t.TempDir(), "ports")
		a, err := Open(t.Context(), config.Config{
			Listen: c.listen, AdminListen: c.admin, PortFile: ports, Upstream: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Key: settings.NewSecret(stripeKey),
			Timeout: time.Second, Database: settings.NewSecret(c.dsn), DBPool: 4, IdleConnections: 10, Grace: time.Second,
		}, slog.New(slog.DiscardHandler))
		switch {
		case err == nil:
			a.Close()
			t.Errorf("%s: it starts", c.what)
		case !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "MARKER"):
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if _, err := os.Stat(ports); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the port file: %v", c.what, err)
		}
	}
}
