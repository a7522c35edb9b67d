module gorm.io/gorm/tests

go 1.25.0

require (
	gorm.io/driver/mysql v1.6.0
	gorm.io/gorm v1.31.2
)

// GORM's own has it replaced by the directory above, which would be built for this test.
