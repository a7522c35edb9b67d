// Command release makes a release of the modules that users get: the library, lockgorm,
// lockotel, the modules in contrib and the programs in cmd. In go.mod of a checkout they replace
// each other; a release is a commit beside the branch, in which they require each other by
// version, with a tag for each module. It is made in a clone, and tried there as users would: only
// then the checkout gets the tags, and only with -push the remote does.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	version := flag.String("version", "", "the version, v0.1.0")
	checkout := flag.String("checkout", "..", "the repository")
	tested := flag.Bool("tested", false, "make verify test has passed on this commit")
	dry := flag.Bool("dry", false, "make and try the release in a clone only")
	push := flag.Bool("push", false, "push the tags to the remote origin")
	flag.Parse()

	root, err := filepath.Abs(*checkout)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err = run(ctx, root, *version, *tested, *dry, *push)
	stop()
	if err != nil {
		log.Fatalf("release: %v", err)
	}
}
