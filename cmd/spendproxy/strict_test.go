package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// raw sends bytes over a connection of its own and reads the answers, until the
// other side closes or has said as many as there are requests.
func (r *rig) raw(text string, answers int) (statuses []int, bodies []string) {
	conn, err := net.Dial("tcp", r.app.Address())
	if err != nil {
		r.t.Error(err)
		return nil, nil
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		r.t.Error(err)
		return nil, nil
	}
	in := bufio.NewReader(conn)
	for range answers {
		method, _, _ := strings.Cut(text, " ")
		res, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			return statuses, bodies
		}
		body, _ := io.ReadAll(res.Body)
		statuses, bodies = append(statuses, res.StatusCode), append(bodies, string(body))
	}
	return statuses, bodies
}

func head(secret string) string {
	return "Authorization: Bearer " + secret + "\r\nIdempotency-Key: " + uuid.NewString() + "\r\nContent-Type: application/x-www-form-urlencoded\r\n"
}

const chargeForm = "amount=1000&currency=usd&customer=cus_free&source=pm_card_visa"

// Case C031: no spelling of a path reaches Stripe but the canonical one, and no
// host but Stripe's is contacted, whatever the request line or the Host header
// say.
func TestC031_PathSpelling(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, says(200, aCharge))
	elsewhere := newUpstream(t, nil)
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	host := strings.TrimPrefix(elsewhere.URL, "http://")
	targets := []string{
		"/v1//charges", "//v1/charges", "/v1/./charges", "/v1/x/../charges", "/v1/charges/../refunds", "/v1/%2e%2e/v1/charges", "/v1%2fcharges", "/v1%2Fcharges",
		"/v1%5ccharges", `/v1\charges`, "/v1/%63harges", "/v1/cha%72ges", "/v1/charges%252f", "/v1/charges/", "/v1/charges.", "/v1/charges;x", "/v1/charges;x=1",
		"/v1/Charges", "/V1/charges", "/v1/CHARGES", "/v1/charges%00", "/v1/charges%20", "/v1/charges#x",
		elsewhere.URL + "/v1/charges", "http://" + host + "/v1/charges", "https://api.stripe.com/v1/charges", "//" + host + "/v1/charges",
	}
	for _, target := range targets {
		got, bodies := r.raw("POST "+target+" HTTP/1.1\r\nHost: api.stripe.com\r\n"+head(key)+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chargeForm), chargeForm), 1)
		if len(got) != 1 || got[0] != 403 && got[0] != 400 {
			t.Errorf("%s: %v %v", target, got, bodies)
		}
	}
	for _, line := range []string{
		"CONNECT " + host + " HTTP/1.1", "CONNECT /v1/charges HTTP/1.1", "OPTIONS * HTTP/1.1", "DELETE /v1/charges HTTP/1.1", "PUT /v1/charges HTTP/1.1",
		"HEAD /v1/charges HTTP/1.1", "post /v1/charges HTTP/1.1", "TRACE /v1/charges HTTP/1.1",
	} {
		if got, bodies := r.raw(line+"\r\nHost: "+host+"\r\n"+head(key)+"\r\n", 1); len(got) != 1 || got[0] != 403 {
			t.Errorf("%s: %v %v", line, got, bodies)
		}
	}
	if seen := stripe.arrivals(); len(seen) != 0 {
		t.Fatalf("reached Stripe: %+v", seen)
	}

	// A Host of somebody else's changes nothing: it is Stripe that is asked.
	got, bodies := r.raw("POST /v1/charges HTTP/1.1\r\nHost: "+host+"\r\nX-Forwarded-Host: "+host+"\r\n"+head(key)+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chargeForm), chargeForm), 1)
	if len(got) != 1 || got[0] != 200 {
		t.Errorf("with another Host: %v %v", got, bodies)
	}
	if seen := stripe.arrivals(); len(seen) != 1 || seen[0].target != "/v1/charges" || "http://"+seen[0].host != stripe.URL {
		t.Errorf("reached Stripe: %+v", seen)
	}
	if seen := elsewhere.arrivals(); len(seen) != 0 {
		t.Errorf("reached somebody else: %+v", seen)
	}
}

// Case C032: a key whose cap is used up moves nothing by any road, known or not.
func TestC032_RoadsToMoney(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := r.free(5000)
	form := url.Values{"amount": {"5000"}, "currency": {"usd"}, "customer": {"cus_free"}}
	intent := r.post(key, "/v1/payment_intents", uuid.NewString(), form)
	intent.want(t, "create", 200, "")
	r.charge(key, 5000).want(t, "the charge that uses the cap up", 200, "")
	before := len(r.stripe.Requests())

	for _, path := range []string{
		"/v1/payment_intents/" + intent.ID + "/capture", "/v1/payment_intents/" + intent.ID, "/v1/invoices/in_1/pay", "/v1/invoices", "/v1/subscriptions",
		"/v1/transfers", "/v1/payouts", "/v1/topups", "/v1/charges/ch_1/capture", "/v1/checkout/sessions", "/v1/setup_intents", "/v1/customers", "/v1/tokens",
	} {
		r.post(key, path, uuid.NewString(), form).want(t, path, 403, "path_refused")
	}
	if n := len(r.stripe.Requests()); n != before {
		t.Errorf("%d of them reached Stripe", n-before)
	}
	r.post(key, "/v1/payment_intents/"+intent.ID+"/confirm", uuid.NewString(), offSession).want(t, "two-step", 429, "spend_cap_exceeded")
	r.charge(key, 100).want(t, "legacy charge", 429, "spend_cap_exceeded")
	form.Set("confirm", "true")
	r.post(key, "/v1/payment_intents", uuid.NewString(), form).want(t, "one-step", 429, "spend_cap_exceeded")
	form.Set("capture_method", "manual")
	r.post(key, "/v1/payment_intents", uuid.NewString(), form).want(t, "authorisation", 403, "parameter_refused")
	if minor, charges := r.taken(); minor != 5000 || charges != 1 {
		t.Errorf("Stripe took %d in %d charges", minor, charges)
	}
	if n := len(r.stripe.Requests()); n != before {
		t.Errorf("%d of them reached Stripe", n-before)
	}
}

// Case C131, the proxy's part: large, endless, squeezed and slow bodies are
// refused, and others are served meanwhile.
func TestC131_Bodies(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, says(200, aCharge))
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	var bomb bytes.Buffer
	squeeze := gzip.NewWriter(&bomb)
	_, _ = io.CopyN(squeeze, zeros{}, 10<<20)
	_ = squeeze.Close()

	line := "POST /v1/charges HTTP/1.1\r\nHost: x\r\n" + head(key)
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 8192, strings.Repeat("a", 8192))
	for name, x := range map[string]struct {
		text string
		want int
	}{
		"declared at 100 MB":      {line + "Content-Length: 104857600\r\n\r\n", 413},
		"one byte too many":       {line + fmt.Sprintf("Content-Length: %d\r\n\r\n", 64<<10+1) + strings.Repeat("a", 64<<10+1), 413},
		"chunked without an end":  {line + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat(chunk, 12), 413},
		"gzip":                    {line + fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", bomb.Len(), bomb.String()), 415},
		"an encoding like none":   {line + "Content-Encoding: identity\r\nContent-Length: 0\r\n\r\n", 415},
		"JSON":                    {strings.Replace(line, "x-www-form-urlencoded", "json", 1) + "Content-Length: 2\r\n\r\n{}", 415},
		"multipart":               {strings.Replace(line, "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", 1) + "Content-Length: 2\r\n\r\nab", 415},
		"two content types":       {line + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\nab", 415},
		"two keys":                {line + "Idempotency-Key: second\r\nContent-Length: 2\r\n\r\nab", 400},
		"two lengths":             {line + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nab", 400},
		"length and chunks":       {line + "Content-Length: 2\r\nTransfer-Encoding: gzip, chunked\r\n\r\nab", 501},
		"a broken chunk":          {line + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		"a body on a GET":         {"GET /v1/charges HTTP/1.1\r\nHost: x\r\n" + head(key) + "Content-Length: 2\r\n\r\nab", 400},
		"headers without an end":  {line + "X-Long: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", 431},
		"an amount that is twice": {line + "Content-Length: 29\r\n\r\namount=1&amount=2&currency=us", 400},
	} {
		if got, bodies := r.raw(x.text, 1); len(got) != 1 || got[0] != x.want {
			t.Errorf("%s: %v %v, want %d", name, got, bodies, x.want)
		}
	}
	if seen := stripe.arrivals(); len(seen) != 0 {
		t.Fatalf("reached Stripe: %d", len(seen))
	}

	// A chunked body within the limits is a body, and goes on as one that is not.
	got, bodies := r.raw(line+fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(chargeForm), chargeForm), 1)
	if len(got) != 1 || got[0] != 200 {
		t.Errorf("chunked: %v %v", got, bodies)
	}
	if seen := stripe.arrivals(); len(seen) != 1 || seen[0].header.Get("Transfer-Encoding") != "" || seen[0].body != chargeForm {
		t.Errorf("reached Stripe: %+v", seen)
	}
}

// A body that comes byte by byte is given up, while others are served.
func TestC131_SlowBody(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, says(200, aCharge))
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	slow := make(chan []int, 1)
	go func() {
		got, _ := r.raw("POST /v1/charges HTTP/1.1\r\nHost: x\r\n"+head(key)+"Content-Length: 100\r\n\r\namount", 1)
		slow <- got
	}()
	for range 20 {
		r.charge(key, 1000).want(t, "beside it", 200, "")
	}
	select {
	case got := <-slow:
		if !slices.Equal(got, []int{408}) {
			t.Errorf("the slow one: %v", got)
		}
	case <-time.After(60 * time.Second):
		t.Error("the slow body is waited for")
	}
}

// What asks whether it may send its body is told so only once the rest of it is
// as it should be.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, says(200, aCharge))
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	for line, want := range map[string][]int{
		"POST /v1/payouts HTTP/1.1\r\nHost: x\r\n" + head(key):               {403},
		"POST /v1/charges HTTP/1.1\r\nHost: x\r\n" + head("vk_nobody_knows"): {401},
	} {
		if got, _ := r.raw(line+"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 1); !slices.Equal(got, want) {
			t.Errorf("%.20s: %v, want %v", line, got, want)
		}
	}
	conn, err := net.Dial("tcp", r.app.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	fmt.Fprintf(conn, "POST /v1/charges HTTP/1.1\r\nHost: x\r\n%sExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", head(key), len(chargeForm))
	in := bufio.NewReader(conn)
	if first, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(first, "HTTP/1.1 100 ") {
		t.Fatalf("%q %v", first, err)
	}
	_, _ = in.ReadString('\n')
	fmt.Fprint(conn, chargeForm)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
}

// Who has no vault key learns nothing and reaches nothing.
func TestWithoutAVaultKey(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, nil)
	r := newRigAt(t, stripe.URL, nil)
	good := r.free(1000)
	for name, lines := range map[string]string{
		"none":           "",
		"empty":          "Authorization: \r\n",
		"bearer":         "Authorization: Bearer \r\n",
		"null":           "Authorization: Bearer null\r\n",
		"Stripe's":       "Authorization: Bearer " + stripeKey + "\r\n",
		"the admin's":    "Authorization: Bearer " + adminToken + "\r\n",
		"unknown":        "Authorization: Bearer vk_0000000000000000_x\r\n",
		"half":           "Authorization: Bearer " + good[:len(good)-1] + "\r\n",
		"more":           "Authorization: Bearer " + good + "x\r\n",
		"another scheme": "Authorization: Token " + good + "\r\n",
		"twice":          "Authorization: Bearer " + good + "\r\nAuthorization: Bearer " + good + "\r\n",
		"in a cookie":    "Cookie: key=" + good + "\r\n",
		"a password":     "Authorization: Basic dmtfYTpi\r\n",
	} {
		if got, bodies := r.raw("GET /v1/account HTTP/1.1\r\nHost: x\r\n"+lines+"\r\n", 1); !slices.Equal(got, []int{401}) || !strings.Contains(bodies[0], `"code":"vault_key_invalid"`) {
			t.Errorf("%s: %v %v", name, got, bodies)
		}
	}
	if seen := stripe.arrivals(); len(seen) != 0 {
		t.Errorf("reached Stripe: %+v", seen)
	}
	req, _ := http.NewRequest(http.MethodGet, r.url+"/v1/account", nil)
	req.SetBasicAuth(good, "") // curl -u vk_…:
	if got := r.do(req); got.status != 200 {
		t.Errorf("as the user of Basic: %d %s", got.status, got.body)
	}
	if seen := stripe.arrivals(); len(seen) != 1 || seen[0].header.Get("Authorization") != "Bearer "+stripeKey {
		t.Errorf("reached Stripe: %+v", seen)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
