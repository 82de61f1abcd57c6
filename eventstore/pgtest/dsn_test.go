package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TEST_DATABASE_URL comes in all forms that pgx reads.
func TestConnectionStrings(t *testing.T) {
	for _, dsn := range []string{
		"postgres://ann:se%20cret@db.example:5433/first?sslmode=disable",
		"postgresql://ann:se%20cret@/first?host=/run/postgresql&port=5433",
		"postgres://ann:se%20cret@db.example:5433?dbname=first",
		"host=db.example port=5433 user=ann password='se cret' dbname=first sslmode=disable",
		"user=ann password='se cret' host=/run/postgresql",
	} {
		before, err := pgconn.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		other, err := pgconn.ParseConfig(withDatabase(dsn, "second"))
		if err != nil {
			t.Fatal(err)
		}
		if other.Database != "second" || other.Host != before.Host || other.Port != before.Port || other.User != "ann" || other.Password != "se cret" {
			t.Errorf("%s with another database is %+v", dsn, other)
		}
		moved, err := pgconn.ParseConfig(withAddress(dsn, "127.0.0.1", "6000"))
		if err != nil {
			t.Fatal(err)
		}
		if moved.Host != "127.0.0.1" || moved.Port != 6000 || moved.TLSConfig != nil || moved.Database != before.Database || moved.User != "ann" || moved.Password != "se cret" {
			t.Errorf("%s with another address is %+v", dsn, moved)
		}
	}
}
