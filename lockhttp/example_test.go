package lockhttp_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"strings"

	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// loggedIn lets only those through who are logged in to the program.
func loggedIn(h http.Handler) http.Handler { return h }

// session returns who has sent a request.
func session(*http.Request) (name string, operates bool) { return "", false }

// The pages of a program, below /locks/, for those who are logged in.
func Example() {
	recorder := lockhttp.NewRecorder() // of what this process does
	db, err := locksqlc.Open("app:secret@tcp(127.0.0.1:3306)/shop", txlock.Observe(recorder.Observe))
	if err != nil {
		log.Fatal(err)
	}
	pages, err := lockhttp.New(db, lockhttp.Events(recorder))
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()
	http.Handle("/locks/", loggedIn(pages))
}

// Operators may release locks and ask holders.
func ExampleAuthorize() {
	db, err := locksqlc.Open("app:secret@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	operators := func(r *http.Request, _ lockhttp.Action) (string, error) {
		name, operates := session(r)
		if !operates {
			return name, errors.New("not an operator")
		}
		return name, nil
	}
	pages, err := lockhttp.New(db, lockhttp.Authorize(operators))
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: loggedIn(pages)}
	server.RegisterOnShutdown(pages.Close)
}

// Keys of customers are shown by their families and last two characters.
func ExampleMaskKeys() {
	mask := func(key string) string {
		family, id, _ := strings.Cut(key, ":")
		return family + ":…" + id[max(0, len(id)-2):]
	}
	fmt.Println(mask("customer:mueller17"))
	_ = lockhttp.MaskKeys(mask) // for New
	// Output: customer:…17
}
