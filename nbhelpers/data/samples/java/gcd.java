// SPDX-License-Identifier: Apache-2.0
// Family: the greatest common divisor.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static int gcd(int a, int b) {
    while (b != 0) {
        int t = b;
        b = a % b;
        a = t;
    }
    return a;
}

//@ 02
static long run(long m, long n) {
    return n == 0
        ? Math.abs(m)
        : run(n, m % n);
}

//@ 03
int subtract(int x, int y)
{
    if (x <= 0 || y <= 0)
        throw new IllegalArgumentException("positive numbers only");
    while (x != y)
    {
        if (x > y)
            x -= y;
        else
            y -= x;
    }
    return x;
}

//@ 04
/** Binary variant: shifts and differences, no division. */
public static int stein(int u, int v) {
    if (u == 0) return v;
    if (v == 0) return u;
    int shift = Integer.numberOfTrailingZeros(u | v);
    u >>= Integer.numberOfTrailingZeros(u);
    while (v != 0) {
        v >>= Integer.numberOfTrailingZeros(v);
        if (u > v) {
            int t = u; u = v; v = t;
        }
        v -= u;
    }
    return u << shift;
}

//@ 05
static int commonFactor(int p, int q) {
    int best = 1;
    for (int d = 2; d <= Math.min(p, q); d++) {
        if (p % d == 0 && q % d == 0) {
            best = d;
        }
    }
    return best;
}

//@ 06
public BigInteger largestDivisor(BigInteger first, BigInteger second) {
    BigInteger big = first.abs();
    BigInteger small = second.abs();
    while (small.signum() != 0) {
        BigInteger[] qr = big.divideAndRemainder(small);
        big = small;
        small = qr[1];
    }
    return big;
}

//@ 07
public static int ofAll(int... numbers) {
    int result = 0;
    for (int n : numbers) {
        int a = Math.abs(n);
        while (a != 0) {
            int rest = result % a;
            result = a;
            a = rest;
        }
    }
    return result;
}

//@ 08
static OptionalInt solve(int a, int b) {
    return IntStream.rangeClosed(1, Math.min(a, b))
            .filter(i -> a % i == 0 && b % i == 0)
            .max();
}

//@ 09
private int countDown(int num1, int num2) {
    int divisor = num1 < num2 ? num1 : num2;
    while (num1 % divisor != 0 || num2 % divisor != 0) {
        divisor--;
    }
    return divisor;
}

//@ 10
static int process(int left, int right) {
    Set<Integer> divisorsLeft = new HashSet<>();
    TreeSet<Integer> shared = new TreeSet<>();
    for (int i = 1; i <= left; i++) {
        if (left % i == 0) divisorsLeft.add(i);
    }
    for (int i = 1; i <= right; i++) {
        if (right % i == 0) shared.add(i);
    }
    shared.retainAll(divisorsLeft);
    return shared.last();
}

//@ 11
/**
 * Extended form: also finds x and y with ax + by = g.
 * @return {g, x, y}
 */
public static long[] extended(long a, long b) {
    if (b == 0) {
        return new long[] {a, 1, 0};
    }
    long[] r = extended(b, a % b);
    return new long[] {r[0], r[2], r[1] - (a / b) * r[2]};
}

//@ 12
static int byFactors(int a, int b) {
    int product = 1;
    int f = 2;
    while (f <= a && f <= b) {
        boolean divA = a % f == 0, divB = b % f == 0;
        if (divA && divB) product *= f;
        if (divA) a /= f;
        if (divB) b /= f;
        if (!divA && !divB) f++;
    }
    return product;
}

//@ 13
public Long reduceList(List<Long> values) {
    if (values.isEmpty()) {
        return 0L;
    }
    return values.stream().reduce(0L, (x, y) -> {
        while (y != 0) {
            long z = x % y;
            x = y;
            y = z;
        }
        return x;
    });
}

//@ 14
static int f(int a, int b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    if ((a & 1) == 0 && (b & 1) == 0) return f(a >> 1, b >> 1) << 1;
    if ((a & 1) == 0) return f(a >> 1, b);
    if ((b & 1) == 0) return f(a, b >> 1);
    return a > b ? f((a - b) >> 1, b) : f((b - a) >> 1, a);
}

//@ 15
public static int measure(int dividend, int divisor) {
    int remainder;
    do {
        remainder = dividend % divisor;
        dividend = divisor;
        divisor = remainder;
    } while (remainder > 0);
    return dividend;
}

//@ 16
protected static int hcf(final Integer alpha, final Integer beta) {
    Deque<Integer> chain = new ArrayDeque<>();
    chain.push(Math.max(alpha, beta));
    chain.push(Math.min(alpha, beta));
    while (chain.peek() != 0) {
        int small = chain.pop();
        int large = chain.pop();
        chain.push(small);
        chain.push(large % small);
    }
    chain.pop();
    return chain.pop();
}

//@ 17
static long viaBig(String a, String b) {
    try {
        return new BigInteger(a.trim()).gcd(new BigInteger(b.trim())).longValueExact();
    } catch (NumberFormatException e) {
        return -1; // not a number
    }
}

//@ 18
int tile(int width, int height) {
    // the largest square tile that covers a floor without a cut
    int tile = Math.min(width, height);
    int other = Math.max(width, height);
    for (int over = other % tile; over != 0; over = other % tile) {
        other = tile;
        tile = over;
    }
    return tile;
}

//@ 19
public static int xorSwap(int a, int b) {
  for (;;) {
    if (a < b) {
      a ^= b;
      b ^= a;
      a ^= b;
    }
    if (b == 0) {
      return a;
    }
    a -= b * (a / b);
  }
}

//@ 20
static Map<String, Integer> simplify(int numerator, int denominator) {
    if (denominator == 0) throw new ArithmeticException("denominator is zero");
    int g = 1;
    for (int c = 1; c * c <= denominator; c++) {
        if (denominator % c != 0) continue;
        if (numerator % c == 0) g = Math.max(g, c);
        if (numerator % (denominator / c) == 0) g = Math.max(g, denominator / c);
    }
    Map<String, Integer> answer = new HashMap<>();
    answer.put("divisor", g);
    return answer;
}
