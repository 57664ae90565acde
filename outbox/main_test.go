package outbox

import (
	"flag"
	"os"
	"testing"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		relayChild() // a relay of its own process, to be killed
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "5") // parallel tests wait most of the time, one of them for a node that another one has
	testenv.Main(m)
}
