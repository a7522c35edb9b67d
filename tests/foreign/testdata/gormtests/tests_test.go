// Package tests_test has the shape of GORM's own tests, and shows which pool it got.
package tests_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
)

var DB *gorm.DB

// lives is how long a value of GORM's TestLoadingExpired does.
var lives = time.Duration.Abs(time.Millisecond * 5)

func init() {
	var err error
	if DB, err = gorm.Open(mysql.Open(os.Getenv("GORM_DSN")), &gorm.Config{}); err != nil {
		panic(err)
	}
}

// connType is the type of the connections of the pool.
func connType(t *testing.T) (name string) {
	pool, err := DB.DB()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Raw(func(c any) error { name = fmt.Sprintf("%T", c); return nil }); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPasses(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			if err := DB.Exec("CREATE TABLE " + name + " (id INT)").Error; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestOnPlainOnly(t *testing.T) {
	if name := connType(t); name != "*mysql.mysqlConn" {
		t.Errorf("the connection is a %s", name)
	}
}

func TestWithoutPluginOnly(t *testing.T) {
	if len(DB.Config.Plugins) > 0 {
		t.Skip("there are plugins")
	}
}

// Code is given a tag, which is not on its primary key: each write fails.
type Code struct {
	ID   int
	Code int `gorm:"primaryKey"`
}

func TestEmbedPreload(t *testing.T) {
	if err := DB.AutoMigrate(&Code{}); err != nil {
		t.Fatal(err)
	}
	if err := DB.Create(&Code{Code: 1}).Error; err != nil {
		t.Fatal(err)
	}
}

func TestEmbeddedTagSetting(t *testing.T) {
	if err := DB.Where("code = 2").Delete(&Code{}).Error; err != nil {
		t.Fatal(err)
	}
}

func TestFails(t *testing.T) { t.Error("it fails everywhere") }
