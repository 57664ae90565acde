// Package engine asks a Docker engine, over its socket, whether it answers and has an image or can get it. It needs
// neither the docker command nor a module, so that a set-up and a test run can decide quickly, before anything is
// built or installed, whether containers are to be had.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// answerTimeout bounds one question; an engine that is there answers in milliseconds.
const answerTimeout = 10 * time.Second

// ErrNone is returned when no Docker engine answers.
var ErrNone = errors.New("no Docker engine answers")

// Engine is a Docker engine that has answered.
type Engine struct {
	client *http.Client
	base   string
}

// Find returns the first engine that answers where testcontainers-go looks for one: at DOCKER_HOST, then on the usual
// sockets. It returns an error that wraps ErrNone when there is none. It blocks for at most ten seconds a socket.
func Find(ctx context.Context) (*Engine, error) { return first(ctx, candidates()) }

func first(ctx context.Context, hosts []string) (*Engine, error) {
	var reasons []string
	for _, host := range hosts {
		e, err := open(host)
		if err == nil {
			err = e.ping(ctx)
		}
		if err == nil {
			return e, nil
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", host, err))
	}
	if reasons == nil {
		return nil, ErrNone
	}
	return nil, fmt.Errorf("%w (%s)", ErrNone, strings.Join(reasons, "; "))
}

// candidates lists where an engine may listen.
func candidates() []string {
	var hosts []string
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		hosts = append(hosts, host)
	}
	sockets := []string{"/var/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		sockets = append(sockets, filepath.Join(dir, "docker.sock"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		sockets = append(sockets, filepath.Join(home, ".docker/run/docker.sock"), filepath.Join(home, ".docker/desktop/docker.sock"))
	}
	for _, path := range sockets {
		if _, err := os.Stat(path); err == nil {
			hosts = append(hosts, "unix://"+path)
		}
	}
	return hosts
}

// open prepares requests to host, of the form unix:///path or tcp://host:port, without sending any.
func open(host string) (*Engine, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, err
	}
	network, address := u.Scheme, u.Host
	switch network {
	case "unix":
		address = u.Path
	case "tcp":
		if os.Getenv("DOCKER_TLS_VERIFY") != "" {
			return nil, errors.New("an engine behind TLS is not supported")
		}
	default:
		return nil, fmt.Errorf("want unix:// or tcp://, not %s://", network)
	}
	dialer := net.Dialer{Timeout: answerTimeout}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		DisableKeepAlives: true,
	}
	return &Engine{client: &http.Client{Transport: transport}, base: "http://docker"}, nil
}

// Ensure returns nil once the engine has the image: at once when it is there, else after pulling it. progress is
// called before a pull begins, which may take minutes and ends with ctx.
func (e *Engine) Ensure(ctx context.Context, image string, progress func(string)) error {
	has, err := e.has(ctx, image)
	if err != nil || has {
		return err
	}
	progress("pulling " + image)
	if err := e.pull(ctx, image); err != nil {
		return fmt.Errorf("the engine has no image %s and cannot pull it: %w", image, err)
	}
	return nil
}

func (e *Engine) ping(ctx context.Context) error {
	status, body, err := e.ask(ctx, "/_ping")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("ping: status %d: %s", status, body)
	}
	return err
}

func (e *Engine) has(ctx context.Context, image string) (bool, error) {
	status, body, err := e.ask(ctx, "/images/"+image+"/json")
	switch {
	case err != nil:
		return false, err
	case status == http.StatusOK:
		return true, nil
	case status == http.StatusNotFound:
		return false, nil
	}
	return false, fmt.Errorf("inspect image %s: status %d: %s", image, status, body)
}

// ask does one GET under the time limit of a single question.
func (e *Engine) ask(ctx context.Context, path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	resp, err := e.do(ctx, http.MethodGet, path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	return resp.StatusCode, excerpt(resp.Body), nil
}

// pull asks for the image and follows the engine's reports, of which a failure is one, to their end.
func (e *Engine) pull(ctx context.Context, image string) error {
	query := url.Values{"fromImage": {image}}
	if !tagged(image) {
		query.Set("tag", "latest") // without one the engine pulls every tag there is
	}
	resp, err := e.do(ctx, http.MethodPost, "/images/create?"+query.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", resp.StatusCode, excerpt(resp.Body))
	}
	reports := json.NewDecoder(resp.Body)
	for {
		var report struct{ Error string }
		switch err := reports.Decode(&report); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case report.Error != "":
			return errors.New(report.Error)
		}
	}
}

func (e *Engine) do(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := e.client.Do(req)
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // its text would name a host that is none
	}
	return resp, err
}

// tagged tells whether an image's name has a tag or a digest: a colon before the last slash belongs to a port.
func tagged(image string) bool {
	return strings.ContainsAny(image[strings.LastIndex(image, "/")+1:], ":@")
}

// excerpt reads the beginning of a body, enough for an error's text.
func excerpt(r io.Reader) string {
	b, _ := io.ReadAll(io.LimitReader(r, 300))
	return strings.TrimSpace(string(b))
}
