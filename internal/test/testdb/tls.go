package testdb

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// tlsArgs are MariaDB's arguments for the files of WriteCertificates.
func tlsArgs(dir string) []string {
	return []string{
		"--ssl-ca=" + filepath.Join(dir, "ca.pem"),
		"--ssl-cert=" + filepath.Join(dir, "cert.pem"),
		"--ssl-key=" + filepath.Join(dir, "key.pem"),
	}
}

// WriteCertificates makes a certification authority and a certificate of it
// for the loopback addresses, good for a day.
func WriteCertificates(dir string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "lockstep test authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	if err := writeCertificate(filepath.Join(dir, "ca.pem"), ca, ca, caKey.Public(), caKey); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "lockstep test server"},
		NotBefore:    ca.NotBefore,
		NotAfter:     ca.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if err := writeCertificate(filepath.Join(dir, "cert.pem"), cert, ca, key.Public(), caKey); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, "key.pem"), "PRIVATE KEY", der)
}

func writeCertificate(path string, cert, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, public, signer)
	if err != nil {
		return err
	}
	return writePEM(path, "CERTIFICATE", der)
}

// writePEM writes a file that the server's own user may read, which is
// another one in Docker. The directory around it is ours alone.
func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644)
}
