package cli

import "github.com/billonce/billonce/migrations"

// migrateCommand brings the schema up to date.
type migrateCommand struct{}

// Run migrates the database. It may be run at any time, by several at once.
func (migrateCommand) Run(s *shell) error {
	dsn, err := databaseURL()
	if err != nil {
		return err
	}
	if err := migrations.Up(s.ctx, dsn); err != nil {
		return err
	}
	return s.done("the database has the schema of this version")
}
