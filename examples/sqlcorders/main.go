// Shop sells products over HTTP. SHOP_DSN is the data source name of its database.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/dca00107/lockstep/txlock"
)

func main() {
	listen := flag.String("listen", "localhost:8081", "the `address` to listen on")
	flag.Parse()
	shop, err := Open(context.Background(), os.Getenv("SHOP_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*listen, shop.handler()))
}

// handler returns the shop's HTTP handler.
func (s *Shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		products, err := numbers(r.URL.Query()["product"]...)
		if err == nil {
			err = s.Order(r.Context(), products...)
		}
		answer(w, "sold", err)
	})
	mux.HandleFunc("PUT /products/{id}", func(w http.ResponseWriter, r *http.Request) {
		n, err := numbers(r.PathValue("id"), r.FormValue("stock"))
		if err == nil {
			err = s.SetStock(r.Context(), n[0], n[1])
		}
		answer(w, "set", err)
	})
	mux.HandleFunc("GET /products/{id}", func(w http.ResponseWriter, r *http.Request) {
		n, err := numbers(r.PathValue("id"))
		var stock int64
		if err == nil {
			stock, err = s.Stock(r.Context(), n[0])
		}
		answer(w, stock, err)
	})
	return mux
}

// numbers parses the parameters of a request.
func numbers(texts ...string) ([]int64, error) {
	var numbers []int64
	for _, text := range texts {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%w: %q", errNoNumber, text)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

var errNoNumber = errors.New("not a number from 0 up")

// answer writes the response for a result.
func answer(w http.ResponseWriter, done any, err error) {
	status := http.StatusInternalServerError
	switch {
	case err == nil:
		_, _ = fmt.Fprintln(w, done) // an error here is the client's
		return
	case errors.Is(err, errNoNumber), errors.Is(err, txlock.ErrInvalidKey):
		status = http.StatusBadRequest
	case errors.Is(err, sql.ErrNoRows):
		status = http.StatusNotFound
	case errors.Is(err, ErrSoldOut):
		status = http.StatusConflict
	case errors.Is(err, txlock.ErrBusy), errors.Is(err, txlock.ErrWaitTimeout):
		status = http.StatusServiceUnavailable // another request holds the lock: retry
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), status)
}
