package job

func isChild() bool { return false }
func child()        {}
