package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/cmd/billingctl/internal/selftest"
)

// selftestCommand runs the crash matrix.
type selftestCommand struct {
	Seed   uint64   `help:"Seed of the first run; each next run has the next one." default:"1" placeholder:"N"`
	Runs   int      `help:"How many runs." default:"300" placeholder:"N"`
	Lanes  int      `help:"Runs at once. Not given: four a processor, since a run mostly waits for leases." placeholder:"N"`
	Plot   []string `help:"Play only these plots." placeholder:"NAME"`
	Break  string   `help:"Take a rule out, to see that the selftest finds it: write_once, cancel_before_void, adopt, or keys (honoured by the stand-in)." placeholder:"RULE"`
	Keep   bool     `help:"Keep the logs of runs that were right, too."`
	BinDir string   `help:"Folder of billingd and stripesim. Not given: where billingctl is." placeholder:"DIR"`
	Dir    string   `help:"Folder for what the selftest keeps while it runs. Not given: in the user's cache." placeholder:"DIR"`
}

// Help says what the selftest does.
func (selftestCommand) Help() string {
	return "An embedded PostgreSQL and stand-ins for Stripe are started; each run bills a month of 24 customers on a database of its own, with services that are killed and frozen at named points of their code, " +
		"a network and a Stripe that fail, a clock that jumps. When everything has come to rest the stand-in's ledger is compared with what is owed. A run is drawn from its seed alone: what is wrong is printed with the seed that repeats it. " +
		"The last line is\n\n  selftest: runs=300 doubled=0 lost=0 wrong=0\n\nand the exit status is 1 if anything else than 0 is found."
}

// Run runs the selftest.
func (c selftestCommand) Run(s *shell) error {
	if c.Runs < 1 || c.Runs > 1_000_000 {
		return usage("--runs must be 1 to 1000000")
	}
	if c.Lanes < 0 || c.Lanes > 256 {
		return usage("--lanes must be 1 to 256")
	}
	o := selftest.Options{Seed: c.Seed, Runs: c.Runs, Lanes: c.Lanes, Plots: c.Plot, Keep: c.Keep, Out: s.Out, Progress: s.progress()}
	switch c.Break {
	case "keys":
		o.IgnoreKeys = true
	default:
		o.Break = c.Break
	}
	if err := o.Check(); err != nil {
		return usage("%v", err)
	}
	var err error
	if o.BinDir, err = (demoCommand{BinDir: c.BinDir}).binDir(); err != nil {
		return err
	}
	if c.Dir != "" {
		o.Base, err = filepath.Abs(c.Dir)
	} else {
		o.Base, err = parts.Base("selftest")
	}
	if err != nil {
		return err
	}
	o.Repeat = func(seed uint64) string {
		command := fmt.Sprintf("%s selftest --seed %d --runs 1", quoted(os.Args[0]), seed)
		for _, plot := range c.Plot {
			command += " --plot " + quoted(plot)
		}
		if c.Break != "" {
			command += " --break " + c.Break
		}
		return command
	}
	result, err := selftest.Run(s.ctx, o)
	if err != nil {
		return err
	}
	if err := s.printf("%s\n", result); err != nil {
		return err
	}
	if !result.Right() {
		return errReported
	}
	return nil
}
