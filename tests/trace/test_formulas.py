from forescale.trace.formulas import fitted

SIZES = (*((b, s) for b in (2, 3) for s in (32, 48, 64)), (5, 40), (4, 64))


def test_a_polynomial_of_batch_and_length_is_found_exactly():
    values = tuple(7 + 3 * b + 11 * s + 5 * b * s + 2 * s * s + b * s * s for b, s in SIZES)
    formula = fitted(values, SIZES)
    assert (formula.coefficients, formula.divisor) == ((7, 3, 11, 5, 2, 1), 1)
    assert formula.at(6.0, 100.0) == 7 + 18 + 1100 + 3000 + 20000 + 60000


def test_coefficients_may_be_fractions():
    values = tuple(b * s * (s + 2) // 2 for b, s in SIZES)
    assert fitted(values, SIZES).at(2.0, 10.0) == 120.0


def test_what_no_polynomial_gives_has_no_formula():
    assert fitted(tuple(b * min(s, 50) for b, s in SIZES), SIZES) is None


def test_one_sequence_length_gives_a_line_in_micro_batch():
    sizes = ((2, 33), (3, 33), (5, 33))
    assert fitted((19, 26, 40), sizes).at(10.0, 33.0) == 75.0
    assert fitted((19, 26, 41), sizes) is None
