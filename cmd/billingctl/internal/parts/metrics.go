package parts

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// ReadMetrics reads the metrics of a service: those that have no label by name,
// others as they are written, name{path="money"}.
func ReadMetrics(ctx context.Context, api string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the service's metrics: %w", err)
	}
	defer res.Body.Close()
	return ParseMetrics(res.Body)
}

// ParseMetrics reads the text format of Prometheus.
func ParseMetrics(r io.Reader) (map[string]float64, error) {
	values := map[string]float64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, " ")
		if i := strings.LastIndexByte(line, '}'); i >= 0 {
			name, value, ok = line[:i+1], strings.TrimSpace(line[i+1:]), true
		}
		number, err := strconv.ParseFloat(value, 64)
		if ok && err == nil {
			values[name] = number
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the service's metrics: %w", err)
	}
	return values, nil
}
