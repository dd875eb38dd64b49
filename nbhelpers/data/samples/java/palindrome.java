// SPDX-License-Identifier: Apache-2.0
// Family: does a text (or a number) read the same in both directions?
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static boolean isPalindrome(String s) {
    int i = 0, j = s.length() - 1;
    while (i < j) {
        if (s.charAt(i++) != s.charAt(j--)) return false;
    }
    return true;
}

//@ 02
static boolean check(String text) {
    String backwards = new StringBuilder(text).reverse().toString();
    return text.equalsIgnoreCase(backwards);
}

//@ 03
boolean pal(String w)
{
    if (w == null)
        throw new IllegalArgumentException("word is null");
    if (w.length() < 2)
        return true;
    char head = w.charAt(0);
    char tail = w.charAt(w.length() - 1);
    return head == tail && pal(w.substring(1, w.length() - 1));
}

//@ 04
public boolean test(final CharSequence seq) {
    final int size = seq.length();
    return IntStream.range(0, size / 2)
            .allMatch(k -> seq.charAt(k) == seq.charAt(size - 1 - k));
}

//@ 05
/** Compares both ends of a queue until they meet. */
public static boolean symmetric(String input) {
    Deque<Character> queue = new ArrayDeque<>();
    for (char c : input.toLowerCase().toCharArray()) {
        if (Character.isLetter(c)) {
            queue.addLast(c);
        }
    }
    boolean same = true;
    while (same && queue.size() > 1) {
        same = queue.pollFirst().equals(queue.pollLast());
    }
    return same;
}

//@ 06
static boolean run(long number) {
    if (number < 0) return false;
    long rest = number;
    long mirrored = 0;
    while (rest > 0) {
        mirrored = mirrored * 10 + rest % 10;
        rest /= 10;
    }
    return mirrored == number;
}

//@ 07
protected boolean process(String line) {
    Stack<Character> stack = new Stack<Character>();
    int n = line.length();
    for (int p = 0; p < n / 2; p++) {
        stack.push(line.charAt(p));
    }
    // the middle letter of an odd word does not matter
    for (int p = (n + 1) / 2; p < n; p++) {
        if (stack.pop() != line.charAt(p)) {
            return false;
        }
    }
    return stack.isEmpty();
}

//@ 08
public static boolean sameBothWays(String phrase) {
    String cleaned = phrase.toLowerCase().replaceAll("[^a-z0-9]", "");
    String other = "";
    for (char ch : cleaned.toCharArray()) {
        other = ch + other;
    }
    return cleaned.equals(other);
}

//@ 09
boolean validate(char[] letters) {
  int left = 0;
  int right = letters.length - 1;
  for (; left < right; left++, right--) {
    while (left < right && !Character.isLetterOrDigit(letters[left])) left++;
    while (left < right && !Character.isLetterOrDigit(letters[right])) right--;
    if (Character.toLowerCase(letters[left]) != Character.toLowerCase(letters[right])) {
      return false;
    }
  }
  return true;
}

//@ 10
private static <T> boolean mirrors(List<T> items) {
    List<T> copy = new ArrayList<>(items);
    Collections.reverse(copy);
    return copy.equals(items);
}

//@ 11
static boolean f(String s, int lo, int hi) {
    if (lo >= hi) {
        return true;
    } else if (s.charAt(lo) != s.charAt(hi)) {
        return false;
    } else {
        return f(s, lo + 1, hi - 1);
    }
}

//@ 12
public boolean isMirrorNumber(int x) {
    if (x < 0 || (x % 10 == 0 && x != 0)) {
        return false;
    }
    int half = 0;
    while (x > half) {
        half = half * 10 + x % 10;
        x = x / 10;
    }
    return x == half || x == half / 10;
}

//@ 13
/**
 * Grows outwards from the centre as long as the two sides agree.
 */
public static boolean grow(String str) {
    int len = str.length();
    if (len == 0) return true;
    int a = (len - 1) / 2;
    int b = len / 2;
    while (a >= 0 && b < len && str.charAt(a) == str.charAt(b)) {
        a--;
        b++;
    }
    return a < 0;
}

//@ 14
boolean solve(LinkedList<Character> chain) {
    Iterator<Character> forward = chain.iterator();
    Iterator<Character> backward = chain.descendingIterator();
    int todo = chain.size() / 2;
    while (todo-- > 0) {
        if (!forward.next().equals(backward.next())) {
            return false;
        }
    }
    return true;
}

//@ 15
public static int isPal(String value) {
    if (value == null || value.trim().isEmpty()) {
        return 0;
    }
    int mismatches = 0;
    for (int idx = 0; idx < value.length(); idx++) {
        if (value.charAt(idx) != value.charAt(value.length() - idx - 1)) {
            mismatches++;
        }
    }
    return mismatches == 0 ? 1 : 0;
}

//@ 16
static boolean unicodeSafe(String source) {
    int[] points = source.codePoints().filter(Character::isLetter).map(Character::toLowerCase).toArray();
    int last = points.length - 1;
    for (int at = 0; at < last - at; at++)
        if (points[at] != points[last - at])
            return false;
    return true;
}

//@ 17
public boolean compareHashes(String s) {
    // one hash read from the left, one from the right
    long fromLeft = 0, fromRight = 0, power = 1;
    final long MOD = 1_000_000_007L;
    for (int i = 0; i < s.length(); i++) {
        fromLeft = (fromLeft * 131 + s.charAt(i)) % MOD;
        fromRight = (fromRight + s.charAt(i) * power) % MOD;
        power = power * 131 % MOD;
    }
    return fromLeft == fromRight;
}

//@ 18
private boolean shrink(StringBuilder buf) {
    while (buf.length() > 1) {
        char z = buf.charAt(buf.length() - 1);
        if (buf.charAt(0) != z) {
            return false;
        }
        buf.deleteCharAt(buf.length() - 1);
        buf.deleteCharAt(0);
    }
    return true;
}

//@ 19
static Boolean halvesMatch(String aWord) {
    if (aWord == null) { return Boolean.FALSE; }
    int mid = aWord.length() / 2;
    String firstHalf = aWord.substring(0, mid);
    String secondHalf = aWord.substring(aWord.length() - mid);
    StringBuffer turned = new StringBuffer(secondHalf);
    turned.reverse();
    return firstHalf.contentEquals(turned);
}

//@ 20
public static List<String> keepMirrored(Collection<String> words) {
    List<String> result = new ArrayList<>();
    outer:
    for (String word : words) {
        char[] cs = word.toUpperCase().toCharArray();
        for (int i = 0, j = cs.length - 1; i < j; i++, j--) {
            if (cs[i] != cs[j]) continue outer;
        }
        result.add(word);
    }
    return result;
}
