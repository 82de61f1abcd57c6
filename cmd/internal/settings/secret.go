package settings

import (
	"fmt"
	"log/slog"
)

// Secret is a text that no log, error or dump shows: it prints as (secret),
// and not even reflection finds its characters.
type Secret struct{ reveal func() string }

// NewSecret hides s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{func() string { return s }}
}

// Reveal is the text itself, for the one place that needs it.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.reveal == nil }

// String is (secret), or nothing where there is none.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return "(secret)"
}

// Format prints what String says, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// LogValue is String for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String for encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
