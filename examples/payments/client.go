package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
)

// network is a http.RoundTripper that loses every second answer, after the server has
// given it.
type network struct{ sent, lost atomic.Int64 }

var errLost = errors.New("the answer was lost")

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := n.sent.Add(1)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || sent%2 == 0 {
		return response, err
	}
	n.lost.Add(1)
	return nil, errors.Join(errLost, response.Body.Close())
}

// payAll makes the payments 1, 2, 3 and so on. Each has a key of its own, and is sent by
// several goroutines at once, as a client does that doesn't want to wait for a timeout.
func payAll(ctx context.Context, url string, n *network) error {
	var wg sync.WaitGroup
	errs := make([]error, payments)
	for i := range payments {
		wg.Go(func() {
			payment := Payment{Payer: int64(i%accounts + 1), Payee: int64((i+1)%accounts + 1), Amount: int64(i + 1)}
			errs[i] = payOnce(ctx, url, n, payment)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// payOnce makes one payment. All who send it must get the same receipt.
func payOnce(ctx context.Context, url string, n *network, payment Payment) error {
	key := rand.Text()
	var wg sync.WaitGroup
	receipts, errs := make([]Receipt, senders), make([]error, senders)
	for i := range senders {
		wg.Go(func() { receipts[i], errs[i] = untilAnswered(ctx, url, n, key, payment) })
	}
	wg.Wait()
	for _, receipt := range receipts {
		if receipt != receipts[0] || receipt.ID == 0 {
			errs = append(errs, fmt.Errorf("%+v has the receipts %v", payment, receipts))
			break
		}
	}
	return errors.Join(errs...)
}

// untilAnswered repeats a request until it is answered.
func untilAnswered(ctx context.Context, url string, n *network, key string, payment Payment) (receipt Receipt, err error) {
	body, err := json.Marshal(payment)
	if err != nil {
		return receipt, err
	}
	client := &http.Client{Transport: n}
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/payments", bytes.NewReader(body))
		if err != nil {
			return receipt, err
		}
		request.Header.Set("Idempotency-Key", `"`+key+`"`)
		response, err := client.Do(request)
		if err != nil {
			continue // who knows what has become of it: the same again
		}
		err = json.NewDecoder(response.Body).Decode(&receipt)
		err = errors.Join(err, response.Body.Close())
		switch response.StatusCode {
		case http.StatusCreated:
			return receipt, err
		case http.StatusConflict, http.StatusServiceUnavailable: // later
		default:
			return receipt, fmt.Errorf("%+v is answered %s", payment, response.Status)
		}
	}
	return receipt, ctx.Err()
}
