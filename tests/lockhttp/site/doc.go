// Package site reads the site of the documentation in a browser. Its tests have the build
// tag site: make verify ONLY=site.
package site
