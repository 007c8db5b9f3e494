package mesh

import "time"

// Duration is a time.Duration whose text form also takes years (365 days) and days, as Kuma's does: "10y", "1d12h".
type Duration time.Duration
