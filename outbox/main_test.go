package outbox

import (
	"os"
	"testing"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		relayChild() // a relay of its own process, to be killed
		return
	}
	testenv.Main(m)
}
