package outbox

import (
	"testing"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
