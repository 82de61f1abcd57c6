// Package config reads the spend proxy's settings and checks them all at once.
// Secrets come by environment alone, never by flag, and nothing here prints the
// value of a setting.
package config
