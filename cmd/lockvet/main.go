// Lockvet finds wrong uses of lockstep. It runs by itself, lockvet ./..., and as a tool of
// go vet: go vet -vettool=$(which lockvet) ./... Its README shows what each check finds.
package main

import (
	"os"
	"strings"

	"golang.org/x/tools/go/analysis/multichecker"
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/dca00107/lockstep/cmd/lockvet/checks"
)

func main() {
	for _, arg := range os.Args[1:] {
		// What go vet asks its tool: which version, which flags, and one unit of work.
		if strings.HasPrefix(arg, "-V=") || arg == "-flags" || strings.HasSuffix(arg, ".cfg") {
			unitchecker.Main(checks.All...)
		}
	}
	multichecker.Main(checks.All...)
}
