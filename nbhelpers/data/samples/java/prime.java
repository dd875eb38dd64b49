// SPDX-License-Identifier: Apache-2.0
// Family: is a number prime?
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static boolean isPrime(int n) {
    if (n < 2) return false;
    for (int i = 2; i * i <= n; i++) {
        if (n % i == 0) return false;
    }
    return true;
}

//@ 02
static boolean check(long number) {
    if (number <= 3) return number > 1;
    if (number % 2 == 0 || number % 3 == 0) return false;
    for (long k = 5; k * k <= number; k += 6) {
        if (number % k == 0 || number % (k + 2) == 0) {
            return false;
        }
    }
    return true;
}

//@ 03
boolean run(final int candidate) {
    return candidate > 1
        && IntStream.rangeClosed(2, (int) Math.sqrt(candidate))
            .noneMatch(d -> candidate % d == 0);
}

//@ 04
/** Crosses out multiples up to x and looks whether x is left. */
static boolean sieve(int x)
{
    if (x < 2)
        return false;
    boolean[] crossed = new boolean[x + 1];
    for (int p = 2; p * p <= x; p++)
    {
        if (crossed[p])
            continue;
        for (int m = p * p; m <= x; m += p)
            crossed[m] = true;
    }
    return !crossed[x];
}

//@ 05
static boolean rec(int n, int d) {
    if (n < 2) {
        return false;
    }
    if (d * d > n) {
        return true;
    }
    return n % d != 0 && rec(n, d + 1);
}

//@ 06
public boolean probable(String digits) {
    BigInteger value;
    try {
        value = new BigInteger(digits);
    } catch (NumberFormatException ex) {
        return false;
    }
    return value.compareTo(BigInteger.ONE) > 0 && value.isProbablePrime(40);
}

//@ 07
public static boolean solve(int num) {
    int divisors = 0;
    for (int i = 1; i <= num; i++) {
        if (num % i == 0) {
            divisors++;
        }
    }
    return divisors == 2;
}

//@ 08
static boolean fermat(BigInteger n) {
    if (n.compareTo(BigInteger.TWO) < 0) return false;
    BigInteger minusOne = n.subtract(BigInteger.ONE);
    for (int base : new int[] {2, 3, 5, 7, 11, 13}) {
        BigInteger b = BigInteger.valueOf(base);
        if (b.compareTo(n) >= 0) break;
        if (!b.modPow(minusOne, n).equals(BigInteger.ONE)) return false;
    }
    return true;
}

//@ 09
/**
 * Strong test with fixed bases, exact for 32-bit numbers.
 */
public static boolean millerRabin(long n) {
    if (n < 2 || (n % 2 == 0 && n != 2)) return false;
    int s = Long.numberOfTrailingZeros(n - 1);
    long d = (n - 1) >> s;
    for (long a : new long[] {2, 7, 61}) {
        if (a % n == 0) continue;
        long x = 1, pow = a % n;
        for (long e = d; e > 0; e >>= 1, pow = pow * pow % n)
            if ((e & 1) == 1) x = x * pow % n;
        boolean passed = x == 1;
        for (int r = 0; r < s && !passed; r++, x = x * x % n) passed = x == n - 1;
        if (!passed) return false;
    }
    return true;
}

//@ 10
int f(int n) {
    int i = 2;
    while (i < n) {
        if (n % i == 0)
            return 0;
        i = i + 1;
    }
    return n > 1 ? 1 : 0;
}

//@ 11
static List<Integer> onlyPrimes(List<Integer> input) {
    List<Integer> kept = new ArrayList<>();
    for (Integer n : input) {
        boolean ok = n > 1;
        int limit = (int) Math.floor(Math.sqrt(Math.max(n, 0)));
        for (int q = 2; ok && q <= limit; q++) {
            ok = n % q != 0;
        }
        if (ok) kept.add(n);
    }
    return kept;
}

//@ 12
public static boolean indivisible(int value) {
    if (value == 2) {
        return true;
    }
    if (value < 2 || (value & 1) == 0) {
        return false;
    }
    int root = (int) Math.round(Math.sqrt(value));
    for (int odd = 3; odd <= root; odd += 2) {
        if (value % odd == 0) {
            return false;
        }
    }
    return true;
}

//@ 13
private static boolean wilson(int p) {
    // (p - 1)! + 1 is a multiple of p for primes only
    if (p < 2) return false;
    long factorial = 1;
    for (int i = 2; i < p; i++) {
        factorial = factorial * i % p;
    }
    return (factorial + 1) % p == 0;
}

//@ 14
static boolean unary(int n) {
    String ones = "1".repeat(Math.max(n, 0));
    return n > 1 && !ones.matches("^(11+?)\\1+$");
}

//@ 15
boolean process(int q) {
    List<Integer> known = new ArrayList<>();
    for (int c = 2; c <= q; c++) {
        boolean fresh = true;
        for (int p : known) {
            if (p * p > c) break;
            if (c % p == 0) {
                fresh = false;
                break;
            }
        }
        if (fresh) known.add(c);
    }
    return !known.isEmpty() && known.get(known.size() - 1) == q;
}

//@ 16
public final boolean isPrimeNumber(final int number) {
    if (number < 0) {
        throw new IllegalArgumentException("negative: " + number);
    }
    BitSet composite = new BitSet(number + 1);
    composite.set(0, 2);
    int next = 2;
    while (next <= number / 2) {
        for (int multiple = 2 * next; multiple <= number; multiple += next) {
            composite.set(multiple);
        }
        next = composite.nextClearBit(next + 1);
    }
    return !composite.get(number);
}

//@ 17
static long smallestFactor(long n) {
    long f = 2;
    do {
        if (n % f == 0) {
            break;
        }
        f += f == 2 ? 1 : 2;
    } while (f <= n / f);
    // equal to n itself exactly when n is prime
    return n % f == 0 ? f : n;
}

//@ 18
public static String describe(int n) {
    switch (n) {
        case 0: case 1:
            return n + " is not prime";
        case 2: case 3: case 5: case 7:
            return n + " is prime";
        default:
    }
    int[] wheel = {1, 7, 11, 13, 17, 19, 23, 29};
    if (n % 2 == 0 || n % 3 == 0 || n % 5 == 0) return n + " is not prime";
    for (int base = 0; base * base <= n; base += 30)
        for (int w : wheel)
            if (base + w > 1 && base + w < n && n % (base + w) == 0)
                return n + " is not prime";
    return n + " is prime";
}

//@ 19
protected boolean noDivisor(int a) {
  boolean flag = true;
  if (a <= 1) {
    flag = false;
  } else {
    for (int b = a / 2; b > 1; b--) {
      int quotient = a / b;
      if (quotient * b == a) flag = false;
    }
  }
  return flag;
}

//@ 20
static boolean[] table(int max) {
    boolean[] prime = new boolean[max + 1];
    Arrays.fill(prime, true);
    Arrays.fill(prime, 0, Math.min(2, max + 1), false);
    for (int i = 2; i <= max; i++)
        for (int j = i; prime[i] && (long) i * j <= max; j++)
            prime[i * j] = false;
    return prime;
}

//@ 21
public static boolean isPrime(int n) {
    if (n < 2) {
        return false;
    }
    for (int i = 2; i <= Math.sqrt(n); i++) {
        if (n % i == 0) {
            return false;
        }
    }
    return true;
}

//@ 22
static boolean trial(long n) {
    if (n < 2) return false;
    if (n % 2 == 0) return n == 2;
    for (long d = 3; d * d <= n; d += 2) {
        if (n % d == 0) return false;
    }
    return true;
}

//@ 23
static boolean exactly(int n, Set<Integer> known) {
    if (known.contains(n)) return true;
    for (int p : known) {
        if (n % p == 0) return false;
    }
    for (int d = 2; d < n; d++) {
        if (n % d == 0) return false;
    }
    return n > 1 && known.add(n);
}

//@ 24
static List<Integer> primesUpTo(int max) {
    List<Integer> primes = new ArrayList<>();
    for (int n = 2; n <= max; n++) {
        boolean prime = true;
        for (int d = 2; d * d <= n; d++) {
            if (n % d == 0) {
                prime = false;
                break;
            }
        }
        if (prime) primes.add(n);
    }
    return primes;
}

//@ 25
public static int countPrimes(int n) {
    boolean[] composite = new boolean[n + 1];
    int count = 0;
    for (int i = 2; i <= n; i++) {
        if (composite[i]) continue;
        count++;
        for (long j = (long) i * i; j <= n; j += i) {
            composite[(int) j] = true;
        }
    }
    return count;
}

//@ 26
static boolean[] sieve(int n) {
    boolean[] prime = new boolean[n + 1];
    Arrays.fill(prime, true);
    prime[0] = false;
    if (n > 0) prime[1] = false;
    for (int p = 2; p * p <= n; p++) {
        if (prime[p]) {
            for (int i = p * p; i <= n; i += p) {
                prime[i] = false;
            }
        }
    }
    return prime;
}

//@ 27
int nextPrime(int n) {
    int candidate = Math.max(n + 1, 2);
    while (true) {
        boolean divisible = false;
        for (int d = 2; d * d <= candidate && !divisible; d++) {
            divisible = candidate % d == 0;
        }
        if (!divisible) return candidate;
        candidate++;
    }
}

//@ 28
public static List<Integer> keepPrimes(List<Integer> numbers) {
    return numbers.stream()
        .filter(n -> n > 1)
        .filter(n -> IntStream.range(2, n).allMatch(d -> n % d > 0))
        .sorted()
        .collect(Collectors.toList());
}

//@ 29
public static List<Integer> factors(int n) {
    List<Integer> factors = new ArrayList<>();
    for (int p = 2; p * p <= n; p++) {
        while (n % p == 0) {
            factors.add(p);
            n /= p;
        }
    }
    if (n > 1) {
        factors.add(n);
    }
    return factors;
}

//@ 30
static boolean divides(int n, int d) {
    if (n < 2) return false;
    if (d * d > n) return true;
    if (n % d == 0) return false;
    return divides(n, d + 1);
}

//@ 31
void printPrimes(int from, int to) {
    for (int n = Math.max(2, from); n <= to; n++) {
        int divisors = 0;
        for (int d = 1; d <= n; d++) {
            if (n % d == 0) divisors++;
        }
        if (divisors == 2) {
            System.out.print(n + " ");
        }
    }
    System.out.println();
}

//@ 32
static int nthPrime(int n) {
    int[] primes = new int[n];
    int found = 0;
    for (int candidate = 2; found < n; candidate++) {
        boolean prime = true;
        for (int i = 0; i < found && primes[i] * primes[i] <= candidate; i++) {
            if (candidate % primes[i] == 0) {
                prime = false;
                break;
            }
        }
        if (prime) primes[found++] = candidate;
    }
    return primes[n - 1];
}
