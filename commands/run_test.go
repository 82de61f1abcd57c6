package commands_test

import (
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

var (
	refusal    = domain.RunRefusal{Code: "spend_cap_exceeded", Currency: "usd", AskedMinor: 1000, VaultKey: "9f2c", CapMinor: new(int64(60_000)), LeftMinor: new(int64(0))}
	runPaused  = domain.RunPaused{BillingPeriod: nov, At: noon, Reason: "to be checked"}
	runHeld    = domain.RunPaused{BillingPeriod: nov, At: noon, Reason: "the cap is reached", Refusal: &refusal}
	runResumed = domain.RunResumed{BillingPeriod: nov, At: noon, Reason: "it was raised"}
)

func TestPauseAndResumeRun(t *testing.T) {
	t.Parallel()
	run := commandstest.For[domain.Run](t)
	pause := commands.NewPauseRun(nov, "to be checked", noon, "k1")
	resume := commands.NewResumeRun(nov, "it was raised", noon, "k2")

	run.Given().When(pause).Then(runPaused)
	run.Given(runPaused).When(pause).ThenNothing()
	run.Given(runHeld).When(pause).ThenNothing()
	run.Given(runPaused, runResumed).When(pause).Then(runPaused)
	run.Given(runPaused).When(resume).Then(runResumed)
	run.Given(runHeld).When(resume).Then(runResumed)
	run.Given().When(resume).ThenNothing()
	run.Given(runPaused, runResumed).When(resume).ThenNothing()
}

// A refusal pauses the run once a turn, whoever meets it. One that a bill met
// which was claimed before the run was resumed says nothing about the new cap.
func TestARefusalPausesTheRunOnceATurn(t *testing.T) {
	t.Parallel()
	run := commandstest.For[domain.Run](t)
	hold := func(turn int) commands.PauseRun {
		return commands.NewHoldRun(nov, turn, refusal, "the cap is reached", noon)
	}

	run.Given().When(hold(0)).Then(runHeld)
	run.Given(runHeld).When(hold(0)).ThenNothing()
	run.Given(runPaused).When(hold(0)).ThenNothing()
	run.Given(runHeld, runResumed).When(hold(0)).ThenNothing()
	run.Given(runHeld, runResumed).When(hold(1)).Then(runHeld)
	run.Given(runHeld, runResumed, runHeld, runResumed).When(hold(1)).ThenNothing()
}

func TestKeysOfRunCommands(t *testing.T) {
	t.Parallel()
	run := commandstest.For[domain.Run](t)
	for _, c := range []struct {
		build func() commands.Command[domain.Run]
		want  domain.Key
	}{
		{func() commands.Command[domain.Run] { return commands.NewPauseRun(nov, "", noon, "k1") }, "pause-run/2026-11/k1"},
		{func() commands.Command[domain.Run] { return commands.NewResumeRun(nov, "", noon, "k1") }, "resume-run/2026-11/k1"},
		{func() commands.Command[domain.Run] { return commands.NewHoldRun(nov, 2, refusal, "", noon) }, "hold-run/2026-11/2"},
	} {
		run.Given().WhenBuilt(c.build)
		if got := c.build().Key(); got != c.want {
			t.Errorf("%s has key %q, want %q", c.build().Name(), got, c.want)
		}
	}
	if stream := commands.NewPauseRun(nov, "", noon, "k1").Stream(); stream != "run/2026-11" || stream.SequenceKey() != "run/2026-11" {
		t.Errorf("the run's stream is %q, its sequence %q: it could be a customer's", stream, stream.SequenceKey())
	}
}
