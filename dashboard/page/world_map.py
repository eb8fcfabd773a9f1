"""A small map of the world: land as a grid of dots, and a larger dot for each country that people declared. Pure.

Both tables are coarse and made by hand: a dot for five degrees, a country's place to the degree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MIN_COUNTRIES: Final = 2
"""One dot on a map says less than its row in the table."""
STEP: Final = 5
"""Degrees between two dots."""
TOP: Final = 80
WIDTH: Final = 360
HEIGHT: Final = 136
"""In degrees: the map ends at 56 degrees south."""

# Of each row from north to south, where land begins and ends, in degrees of longitude.
_LAND: Final = """
-100 -80 -65 -25 95 105
-125 -80 -55 -25 55 55 70 75 85 140
-165 -65 -50 -35 15 40 45 175
-160 -95 -75 -65 -50 -45 -20 -15 10 15 25 160
-155 -155 -130 -95 -75 -65 -5 -5 10 15 25 135 160 160
-125 -80 -75 -60 -10 -10 0 140
-120 -65 -55 -55 0 40 50 130 140 140
-120 -75 -5 0 10 30 35 45 55 130 145 145
-120 -80 -5 -5 15 15 25 45 55 120 125 125 140 140
-115 -80 -5 10 20 120 130 130
-110 -100 -80 -80 -10 35 40 50 60 120
-105 -100 -80 -80 -15 35 40 55 75 75 80 110
-100 -90 -70 -70 -15 35 45 50 75 80 95 105 120 120
-85 -85 -15 40 45 50 80 80 105 105 125 125
-75 -65 -10 45 80 80 100 100 125 125
-75 -55 10 40 100 100 115 115
-80 -45 10 35 105 105 115 115 120 120 135 140
-75 -35 15 35 110 110 145 145
-75 -40 15 40 50 50 135 135
-70 -40 15 35 45 45 125 145
-70 -45 15 30 45 45 115 145
-70 -50 20 30 115 150
-70 -55 20 25 120 120 135 150
-70 -60 145 145 175 175
-70 -65 145 145 170 170
-70 -70
-70 -70
"""

# ISO 3166 code, latitude, longitude.
_COUNTRIES: Final = """
AD 42 2 AE 24 54 AF 34 66 AG 17 -62 AL 41 20 AM 40 45 AO -12 18 AR -35 -65 AT 47 14 AU -25 134 AZ 40 48 BA 44 18
BB 13 -60 BD 24 90 BE 51 5 BF 12 -2 BG 43 25 BH 26 51 BI -3 30 BJ 9 2 BN 5 115 BO -17 -65 BR -10 -53 BS 24 -76
BT 27 90 BW -22 24 BY 53 28 BZ 17 -89 CA 57 -106 CD -3 23 CF 7 21 CG -1 15 CH 47 8 CI 7 -6 CL -33 -71 CM 5 12
CN 35 103 CO 4 -73 CR 10 -84 CU 22 -79 CV 15 -24 CY 35 33 CZ 50 15 DE 51 10 DJ 12 43 DK 56 9 DM 15 -61 DO 19 -70
DZ 28 3 EC -1 -78 EE 59 26 EG 27 30 ER 15 39 ES 40 -4 ET 9 40 FI 63 26 FJ -18 178 FM 7 158 FR 47 2 GA -1 12
GB 53 -2 GD 12 -62 GE 42 44 GH 8 -1 GM 13 -15 GN 10 -11 GQ 2 10 GR 39 22 GT 16 -90 GW 12 -15 GY 5 -59 HK 22 114
HN 15 -87 HR 45 16 HT 19 -73 HU 47 19 ID -2 118 IE 53 -8 IL 31 35 IN 22 79 IQ 33 44 IR 32 54 IS 65 -19 IT 43 12
JM 18 -77 JO 31 36 JP 36 138 KE 1 38 KG 41 75 KH 13 105 KI 1 173 KM -12 44 KN 17 -63 KP 40 127 KR 36 128 KW 29 48
KZ 48 67 LA 18 104 LB 34 36 LC 14 -61 LI 47 10 LK 7 81 LR 6 -9 LS -30 28 LT 55 24 LU 50 6 LV 57 25 LY 27 17
MA 32 -6 MC 44 7 MD 47 29 ME 43 19 MG -19 47 MH 7 171 MK 42 22 ML 17 -4 MM 21 96 MN 47 104 MO 22 113 MR 20 -10
MT 36 14 MU -20 58 MV 3 73 MW -13 34 MX 24 -102 MY 4 102 MZ -17 36 NA -22 17 NE 17 9 NG 10 8 NI 13 -85 NL 52 5
NO 61 9 NP 28 84 NR -1 167 NZ -41 174 OM 21 57 PA 9 -80 PE -9 -75 PG -6 144 PH 13 122 PK 30 70 PL 52 19 PR 18 -66
PS 32 35 PT 40 -8 PW 7 134 PY -23 -58 QA 25 51 RE -21 55 RO 46 25 RS 44 21 RU 60 90 RW -2 30 SA 24 45 SB -9 160
SC -5 55 SD 16 30 SE 61 15 SG 1 104 SI 46 15 SK 49 20 SL 8 -12 SM 44 12 SN 14 -14 SO 5 46 SR 4 -56 SS 7 30
ST 0 7 SV 14 -89 SY 35 38 SZ -27 31 TD 15 19 TG 8 1 TH 15 101 TJ 39 71 TL -9 126 TM 39 59 TN 34 9 TO -21 -175
TR 39 35 TT 11 -61 TV -8 179 TW 24 121 TZ -6 35 UA 49 31 UG 1 32 US 40 -98 UY -33 -56 UZ 41 64 VA 42 12 VC 13 -61
VE 7 -66 VN 16 107 VU -16 168 WS -14 -172 XK 43 21 YE 16 48 ZA -29 25 ZM -13 28 ZW -19 30
"""


def _places() -> dict[str, tuple[int, int]]:
    words = _COUNTRIES.split()
    return {words[place]: (int(words[place + 1]), int(words[place + 2])) for place in range(0, len(words), 3)}


PLACES: Final = _places()
"""(latitude, longitude) by ISO 3166 code, degrees."""


def _land_path() -> str:
    """Each stretch of land as one line; drawn with round dashes of no length it is a row of dots."""
    parts = []
    for row, line in enumerate(_LAND.split("\n")[1:-1]):
        edges = [int(word) for word in line.split()]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            parts.append(f"M{begin + 180} {row * STEP + 3}h{end - begin + 1}")
    return "".join(parts)


LAND: Final = _land_path()


@dataclass(frozen=True, slots=True)
class CountryDot:
    """A country on the map, in degrees from its upper left corner."""

    code: str
    count: int
    x: int
    y: int
    radius: float


def country_dots(countries: Sequence[tuple[str, int]]) -> list[CountryDot]:
    """The dots of `countries` (code, people), the largest first; none for fewer than `MIN_COUNTRIES` with a place.

    The area of a dot grows with its people, up to a bound.
    """
    largest = max((count for _, count in countries), default=1)
    found = []
    for code, count in sorted(countries, key=lambda country: -country[1]):
        if code in PLACES:
            latitude, longitude = PLACES[code]
            radius = round(3 + 5 * math.sqrt(count / max(1, largest)), 1)
            found.append(CountryDot(code, count, longitude + 180, TOP - latitude, radius))
    return found if len(found) >= MIN_COUNTRIES else []
