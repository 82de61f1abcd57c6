package tracking_test
import ("testing";"syscall";"time";"github.com/billonce/billonce/eventstore/tracking";"sync/atomic")
func cpu() time.Duration { var u syscall.Rusage; syscall.Getrusage(0,&u); return time.Duration(u.Utime.Nano()+u.Stime.Nano()) }
func BenchmarkPageCPU(b *testing.B) {
	h := newHouse(b)
	h.fill(300, 10)
	h.exec(`ANALYZE`)
	p := reader("x"); p.PageSize, p.Partitions = 1, 1
	done := make(chan struct{}); var n atomic.Int64
	p.AfterCommit = func(*tracking.Page) { if n.Add(1)==3000 { close(done) } }
	c, s := cpu(), time.Now()
	h.run(tracking.Options{Workers: 1, Poll: time.Second}, p)
	<-done
	b.ReportMetric(float64((cpu()-c).Microseconds())/3000, "go-cpu-us/page")
	b.ReportMetric(3000/time.Since(s).Seconds(), "pages/s")
}
