package verify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// plant is a difference that is planted on a customer of its own: {c} in the
// statement. Each line that is wanted must be found about that customer. More
// than that may only be found if the plant leads to more.
type plant struct {
	name, sql string
	want      []string
	more      bool
}

const (
	ofPaid       = ` WHERE customer_id = '{c}'`
	ofSubscribed = ` WHERE customer_id = '{sub}'`
	ofDunned     = ` WHERE customer_id = '{dun}'`
	ofDeclined   = ` WHERE customer_id = '{dec}'`
	ofImported   = ` WHERE customer_id = '{imp}'`
)

// on makes the customer that the plant is put on.
func (p plant) on(h *house, id domain.CustomerID) {
	switch {
	case strings.Contains(p.sql, "{sub}"):
		h.subscribed(id)
	case strings.Contains(p.sql, "{dec}"):
		h.declined(id)
	case strings.Contains(p.sql, "{dun}"):
		h.declined(id)
		h.dispatch(commands.Of(commands.NewPlanDunning(id, november, 1, domain.DunningDays{3}, time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))))
	case strings.Contains(p.sql, "{end}"):
		h.declined(id)
		h.dispatch(commands.Of(commands.NewWriteOffBilling(id, november, "gone", "op-1")), commands.Of(commands.CompleteClosing{CustomerID: id, BillingPeriod: november}))
	case strings.Contains(p.sql, "{imp}"):
		h.dispatch(commands.Of(commands.NewRegisterCustomer(id, "cus_1", "pm_1")), commands.Of(commands.NewImportHistory(id, november)),
			commands.Of(commands.NewImportCharge(id, november, "ch_"+string(id), fifty)))
	default:
		h.paid(id)
	}
}

// inTheLog are faults of the log. What follows from the log differs, too.
var inTheLog = []plant{
	{"payload edited", `UPDATE events SET payload = replace(payload::text, 'pm_1', 'pm_9')::json WHERE stream_id = 'customer/{c}' AND stream_version = 1`,
		[]string{"chain: customer/{c} version 1 at ", `read-model: customers {c}: payment_method_id is "pm_1", the log makes "pm_9"`}, false},
	{"metadata edited", `UPDATE events SET metadata = '{"actor":"nobody"}' WHERE stream_id = 'customer/{c}' AND stream_version = 1`,
		[]string{"chain: customer/{c} version 1 at "}, false},
	{"digest edited", `UPDATE events SET digest = sha256('x') WHERE stream_id = 'customer/{c}' AND stream_version = 1`,
		[]string{"chain: customer/{c} version 1 at ", "chain: customer/{c} version 2 at "}, false},
	{"event deleted", `DELETE FROM events WHERE stream_id = 'customer/{c}' AND stream_version = 3`,
		[]string{"version: customer/{c} version 4 at ", ": version 3 is missing before it"}, true},
	{"events deleted", `DELETE FROM events WHERE stream_id = 'customer/{c}' AND stream_version IN (2, 3)`,
		[]string{"version: customer/{c} version 4 at ", ": versions 2 to 3 are missing before it"}, true},
	{"last event deleted", `DELETE FROM events WHERE stream_id = 'customer/{c}' AND stream_version = 6`,
		[]string{"key: command refund-charge/{c}/r-1: it made version 6 of customer/{c}, which ends at 5"}, true},
	{"whole stream deleted", `DELETE FROM events WHERE stream_id = 'customer/{c}'`,
		[]string{"row: billing_records {c} 2026-11: the log does not know of it", "row: refund_records {c} r-1: the log does not know of it",
			"saga: sagas {c}/2026-11: the log does not know of it", "read-model: bills {c} 2026-11: the log knows of no such row"}, true},
	{"two events swapped", `UPDATE events SET position = CASE stream_version WHEN 1 THEN 900002 ELSE 900001 END WHERE stream_id = 'customer/{c}' AND stream_version IN (1, 2)`,
		[]string{"version: customer/{c} version 3", "version: customer/{c} version 2"}, true},
	{"another partition", `UPDATE events SET partition = (partition + 1) % 64 WHERE stream_id = 'customer/{c}' AND stream_version = 4`,
		[]string{"partition: customer/{c} version 4 at "}, true},
	{"unknown type", `UPDATE events SET event_type = 'customer.renamed.v1' WHERE stream_id = 'customer/{c}' AND stream_version = 2`,
		[]string{"unknown: customer/{c} version 2", "event customer.renamed.v1, schema version 1, is not known to this build"}, true},
	{"unreadable payload", `UPDATE events SET payload = '[1]' WHERE stream_id = 'customer/{c}' AND stream_version = 2`,
		[]string{"chain: customer/{c} version 2", "unknown: customer/{c} version 2"}, true},
	{"billed twice", `INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload, metadata)
		SELECT partition, stream_id, 7, event_type, sequence_key, replace(payload::text, 'ch_', 'ch2_')::json, metadata FROM events WHERE stream_id = 'customer/{c}' AND stream_version = 5`,
		[]string{"chain: customer/{c} version 7", "fact: customer/{c} version 7", "2026-11 is billed twice: by ch_{c} and by ch2_{c}"}, true},
	{"command forgotten", `DELETE FROM command_keys WHERE key = 'register-customer/{c}'`,
		[]string{"key: customer/{c} version 1 at ", "is not remembered: sent again, it would be decided again", "key: request request of register-customer/{c}"}, false},
	{"command of another stream", `UPDATE command_keys SET stream_id = 'customer/paid_1' WHERE key = 'register-customer/{c}'`,
		[]string{"its command register-customer/{c} is remembered for customer/paid_1 versions 1 to 1"}, false},
}

// besideTheLog are rows that do not say what the log says.
var besideTheLog = []plant{
	{"row state swapped", `UPDATE billing_records SET state = 'reserved'` + ofPaid, []string{"row: billing_records {c} 2026-11: it says reserved, the log says paid"}, false},
	{"row paid too early", `UPDATE billing_records SET state = 'succeeded'` + ofSubscribed, []string{"row: billing_records {c} 2026-11: it says succeeded, the log says requested"}, false},
	{"row void too early", `UPDATE billing_records SET state = 'void'` + ofSubscribed, []string{"it says void, the log says requested"}, false},
	{"row of another state", `UPDATE billing_records SET state = 'held'` + ofSubscribed, []string{"it says held, the log says requested"}, false},
	{"row amount", `UPDATE billing_records SET amount = 4999` + ofPaid, []string{"row: billing_records {c} 2026-11: it asks for $49.99, the bill is $50.00"}, false},
	{"row method", `UPDATE billing_records SET payment_method = 'pm_7'` + ofPaid, []string{"it charges cus_1 by pm_7, the log asked for cus_1 by pm_1"}, false},
	{"row parameters", `UPDATE billing_records SET params = replace(params::text, '5000', '5001')::json` + ofPaid, []string{"the frozen parameters are not those of its columns"}, false},
	{"row key", `UPDATE billing_records SET key = 'x'` + ofPaid, []string{"its charge key is not that of its attempt"}, false},
	{"row attempt", `UPDATE billing_records SET attempt = 2` + ofPaid, []string{"it is at attempt 2, the log at 1"}, false},
	{"row start", `UPDATE billing_records SET start = 4` + ofPaid, []string{"it has started 4 times, the log knows of 1"}, false},
	{"row intent", `UPDATE billing_records SET intent_id = 'pi_other'` + ofPaid, []string{"the log never committed its intent pi_other"}, false},
	{"row outcome", `UPDATE billing_records SET outcome = '{"class":"paid","charge_id":"ch_other"}'` + ofPaid, []string{"it was paid by ch_other, of which the log knows nothing"}, false},
	{"row partition", `UPDATE billing_records SET partition = (partition + 1) % 64` + ofPaid, []string{"row: billing_records {c} 2026-11: it stands in partition"}, false},
	{"row missing", `DELETE FROM billing_records` + ofPaid, []string{"row: billing_records {c} 2026-11: the row is missing"}, false},
	{"row of another period", `UPDATE billing_records SET billing_period = '2026-12'` + ofPaid, []string{"{c} 2026-11: the row is missing", "{c} 2026-12: the log does not know of it"}, false},
	{"refund state", `UPDATE refund_records SET state = 'succeeded'` + ofPaid, []string{"row: refund_records {c} r-1: it says succeeded, the log says requested"}, false},
	{"refund amount", `UPDATE refund_records SET amount = 701` + ofPaid, []string{"row: refund_records {c} r-1: its frozen parameters"}, false},
	{"refund missing", `DELETE FROM refund_records` + ofPaid, []string{"row: refund_records {c} r-1: the row is missing"}, false},
	{"saga state", `UPDATE sagas SET state = replace(state::text, 'paid"', 'due"')::json WHERE id = '{c}/2026-11'`, []string{"saga: sagas billing {c}/2026-11: its state is"}, false},
	{"saga position", `UPDATE sagas SET last_position = last_position + 1 WHERE id = '{c}/2026-11'`, []string{"saga: sagas billing {c}/2026-11: it has seen"}, false},
	{"saga attempt", `UPDATE sagas SET attempt = 7 WHERE id = '{c}/2026-11'`, []string{"saga: sagas billing {c}/2026-11: it is at attempt 7, the log at 1"}, false},
	{"saga missing", `DELETE FROM sagas WHERE id = '{c}/2026-11'`, []string{"saga: sagas billing {c}/2026-11: the row is missing"}, false},
	{"saga of another period", `UPDATE sagas SET id = '{c}/2026-12' WHERE id = '{c}/2026-11'`, []string{"{c}/2026-11: the row is missing", "{c}/2026-12: the log does not know of it"}, false},
	{"due moved", `UPDATE subscription_schedule SET due_at = due_at + interval '1 hour'` + ofSubscribed, []string{"schedule: subscription_schedule {c}: 2026-12 falls due at "}, false},
	{"due never", `UPDATE subscription_schedule SET due_at = '9999-01-01'` + ofSubscribed, []string{"schedule: subscription_schedule {c}: "}, false},
	{"schedule missing", `DELETE FROM subscription_schedule` + ofSubscribed, []string{"schedule: subscription_schedule {c}: the row is missing"}, false},
	{"schedule of nobody", `INSERT INTO subscription_schedule SELECT 'nobody_' || customer_id, partition, next_period, due_at, last_position FROM subscription_schedule` + ofSubscribed,
		[]string{"schedule: subscription_schedule nobody_{c}: the log does not know of it"}, false},
	{"decision missing", `DELETE FROM scheduled_commands` + ofDeclined, []string{"timer: scheduled_commands plan-dunning/{c}/2026-11/1: the row is missing"}, false},
	{"decision put off", `UPDATE scheduled_commands SET due_at = '2026-12-01T00:00:00Z'` + ofDeclined, []string{"timer: scheduled_commands plan-dunning/{c}/2026-11/1: it is due at 2026-12-01T00:00:00Z, by the log at once"}, false},
	{"retry missing", `DELETE FROM scheduled_commands` + ofDunned, []string{"timer: scheduled_commands retry-charge/{c}/2026-11/2/dunning: the row is missing"}, false},
	{"retry earlier", `UPDATE scheduled_commands SET due_at = due_at - interval '1 day'` + ofDunned, []string{"timer: scheduled_commands retry-charge/{c}/2026-11/2/dunning: it is due at "}, false},
	{"retry of another attempt", `UPDATE scheduled_commands SET attempt = 3` + ofDunned, []string{"it is retry-charge for attempt 3, the log makes retry-charge/{c}/2026-11/2/dunning"}, false},
	{"retry of another period", `UPDATE scheduled_commands SET billing_period = '2026-12'` + ofDunned, []string{"it is for {c} 2026-12, its token for {c} 2026-11"}, false},
	{"retry under another key", `UPDATE scheduled_commands SET key = 'x/{dun}'` + ofDunned, []string{"timer: scheduled_commands x/{c}: it is retry-charge", "timer: scheduled_commands retry-charge/{c}/2026-11/2/dunning: the row is missing"}, false},
	{"second retry", `INSERT INTO scheduled_commands SELECT 'again/{dun}', token, command, customer_id, billing_period, attempt, due_at, causation, correlation FROM scheduled_commands` + ofDunned,
		[]string{"timer: scheduled_commands again/{c}: it is retry-charge"}, false},
	{"retry of a paid bill", `INSERT INTO scheduled_commands SELECT 'more/{c}', 'dunning/{c}/2026-11', 'retry-charge', '{c}', '2026-11', 2, now(), '', ''`,
		[]string{"timer: scheduled_commands dunning/{c}/2026-11 more/{c}: the log does not know of it"}, false},
	{"retry of a bill that has ended", `INSERT INTO scheduled_commands SELECT 'late/{end}', 'dunning/{end}/2026-11', 'retry-charge', '{end}', '2026-11', 2, now(), '', ''`,
		[]string{"timer: scheduled_commands late/{c}: the log has cancelled it"}, false},
	{"import missing", `DELETE FROM imported_charges` + ofImported, []string{"import: imported_charges ch_{c}: the row is missing: what Stripe tells of the charge finds no way to {c} 2026-11"}, false},
	{"import of another bill", `UPDATE imported_charges SET billing_period = '2026-12'` + ofImported, []string{"import: imported_charges ch_{c} {c} 2026-12: the log does not know of it"}, false},
	{"model status", `UPDATE bills SET status = 'requested'` + ofPaid, []string{`read-model: bills {c} 2026-11: status is "requested", the log makes "paid"`}, false},
	{"model row missing", `DELETE FROM charges` + ofPaid, []string{"read-model: charges {c} 2026-11 1: the row is missing"}, false},
	{"model row too many", `INSERT INTO revenue_bills SELECT customer_id, '2026-12', partition, month, currency, taken_minor, position FROM revenue_bills` + ofPaid,
		[]string{"read-model: revenue_bills {c} 2026-12: the log knows of no such row"}, false},
	{"model partition", `UPDATE customers SET partition = (partition + 1) % 64` + ofPaid, []string{"read-model: customers {c}: "}, true},
	{"model of no partition", `UPDATE run_bills SET partition = -1` + ofPaid, []string{"run_bills {c} 2026-11: "}, true},
	{"model text", `UPDATE refunds SET reason = 'x'` + ofPaid, []string{`read-model: refunds {c} 2026-11 1: reason is "x", the log makes ""`}, false},
}

// planted bills a customer for each plant, plants them all, and checks.
func planted(t *testing.T, plants []plant) (h *house, found []string) {
	t.Helper()
	h = newHouse(t)
	h.month()
	for i, p := range plants {
		p.on(h, domain.CustomerID(victim(i)))
	}
	h.deliver()
	if report, found := h.verified(); len(found) > 0 || report.Streams != int64(7+len(plants)) || len(report.Lags) > 0 {
		t.Fatalf("nothing was planted: %+v\n%s", report, strings.Join(found, "\n"))
	}
	for i, p := range plants {
		h.exec(strings.NewReplacer("{c}", victim(i), "{sub}", victim(i), "{dec}", victim(i), "{dun}", victim(i), "{end}", victim(i), "{imp}", victim(i)).Replace(p.sql))
	}
	_, found = h.verified()
	return h, found
}

func victim(i int) string { return fmt.Sprintf("victim_%02d", i) }

// about takes the lines that name a customer out of all.
func about(found []string, customer string) (his, others []string) {
	for _, line := range found {
		if strings.Contains(line, customer) {
			his = append(his, line)
		} else {
			others = append(others, line)
		}
	}
	return his, others
}

// judge compares what was found with what was planted, and returns the rest.
func judge(t *testing.T, plants []plant, found []string) (others []string) {
	t.Helper()
	for i, p := range plants {
		var his []string
		his, found = about(found, victim(i))
		for _, want := range p.want {
			want = strings.ReplaceAll(want, "{c}", victim(i))
			if !slices.ContainsFunc(his, func(line string) bool { return strings.Contains(line, want) }) {
				t.Errorf("%s: %q is not found in\n%s", p.name, want, strings.Join(his, "\n"))
			}
		}
		if len(his) > len(p.want) && !p.more {
			t.Errorf("%s: more is found than was planted:\n%s", p.name, strings.Join(his, "\n"))
		}
	}
	return found
}

// Each fault of the log is found and named.
func TestFaultsOfTheLogAreFound(t *testing.T) {
	t.Parallel()
	_, found := planted(t, inTheLog)
	for _, line := range judge(t, inTheLog, found) {
		// Totals contain what was deleted. The swap left positions behind that were not drawn.
		if !strings.HasPrefix(line, "read-model: run_totals ") && !strings.HasPrefix(line, "read-model: revenue ") && !strings.HasPrefix(line, "position: sequence ") {
			t.Errorf("found, and not planted: %s", line)
		}
	}
}

// Each row that does not say what the log says is found, named, and alone.
func TestEveryDifferentRowIsFound(t *testing.T) {
	t.Parallel()
	h, found := planted(t, besideTheLog)
	for _, line := range judge(t, besideTheLog, found) {
		t.Errorf("found, and not planted: %s", line)
	}
	h.exec(`SELECT setval('events_position_seq', 3)`, `UPDATE run_totals SET bills = bills + 1 WHERE ctid = (SELECT min(ctid) FROM run_totals)`,
		`INSERT INTO revenue (month, currency, partition, bills, taken_minor) VALUES ('2026-11-01', 'eur', 99, 1, 5000)`)
	_, found = h.verified()
	text := strings.Join(found, "\n")
	for _, want := range []string{"position: sequence events_position_seq: the next position is 4", "read-model: run_totals 2026-11 usd ", "read-model: revenue 2026-11-01 eur 99: the log knows of no such row"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not found in\n%s", want, text)
		}
	}
}
