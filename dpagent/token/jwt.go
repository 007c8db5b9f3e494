package token

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// validity is when a token was issued (zero if unknown) and when it expires.
type validity struct{ issued, expires time.Time }

// endsSoon reports whether the token is in the last tenth of its validity.
func (l validity) endsSoon(now time.Time) bool {
	return !l.issued.IsZero() && l.expires.Sub(now) <= l.expires.Sub(l.issued)/10
}

// maxSeconds is the last second of the year 9999, the last that RFC 3339 can write.
const maxSeconds = 253402300799

// parse reads the claims exp and iat of a JWT. It verifies no signature. Errors never contain the token. A library
// would take more memory in each pod than the rest of this package.
func parse(token string) (validity, error) {
	if token == "" {
		return validity{}, errors.New("token is empty")
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return validity{}, fmt.Errorf("token is not a JWT: %d parts, not 3", len(parts))
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return validity{}, errors.New("token is not a JWT: second part is not base64url")
	}
	var claims struct {
		Expires float64 `json:"exp"`
		Issued  float64 `json:"iat"`
	}
	if json.Unmarshal(body, &claims) != nil {
		return validity{}, errors.New("token is not a JWT: claims are not JSON, or exp and iat are not numbers")
	}
	if claims.Expires < 1 || claims.Expires > maxSeconds {
		return validity{}, errors.New("exp: missing or invalid")
	}
	l := validity{expires: time.Unix(int64(claims.Expires), 0).UTC()}
	if claims.Issued >= 1 && claims.Issued < claims.Expires {
		l.issued = time.Unix(int64(claims.Issued), 0).UTC()
	}
	return l, nil
}
