package reach

type Options struct{ Retry func() }

func Start(Options) {}

func Each(f func()) { f() }

type Store interface{ Get() }

func Use(Store) {}
