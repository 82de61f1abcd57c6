package main

import (
	"runtime/debug"
	"testing"
)

// The process bounds its own memory, unless its environment does.
func TestMemoryIsBounded(t *testing.T) { // alone: it changes the process
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) }()
	for name, c := range map[string]struct {
		environment map[string]string
		percent     int
		limit       int64
	}{
		"nothing is said":   {nil, gcPercent, memoryLimit},
		"GOGC is set":       {map[string]string{"GOGC": "50"}, 100, memoryLimit},
		"GOMEMLIMIT is set": {map[string]string{"GOMEMLIMIT": "1GiB"}, gcPercent, 1 << 30},
	} {
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(1 << 30)
		tuneMemory(func(key string) string { return c.environment[key] })
		if got := debug.SetMemoryLimit(-1); got != c.limit {
			t.Errorf("%s: the limit is %d, want %d", name, got, c.limit)
		}
		if got := debug.SetGCPercent(100); got != c.percent {
			t.Errorf("%s: the percentage is %d, want %d", name, got, c.percent)
		}
	}
}
