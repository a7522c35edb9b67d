module gorm.io/gorm/tests

go 1.25.0

require (
	gorm.io/driver/mysql v1.6.0
	gorm.io/gorm v1.31.2
)

replace gorm.io/gorm => ../
