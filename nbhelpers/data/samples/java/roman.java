// SPDX-License-Identifier: Apache-2.0
// Family: write a number in Roman numerals.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static String toRoman(int n) {
    int[] values = {1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1};
    String[] symbols = {"M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"};
    StringBuilder roman = new StringBuilder();
    for (int i = 0; i < values.length; i++) {
        while (n >= values[i]) {
            roman.append(symbols[i]);
            n -= values[i];
        }
    }
    return roman.toString();
}

//@ 02
String convert(int number) {
    String[] m = {"", "M", "MM", "MMM"};
    String[] c = {"", "C", "CC", "CCC", "CD", "D", "DC", "DCC", "DCCC", "CM"};
    String[] x = {"", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"};
    String[] i = {"", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"};
    return m[number / 1000] + c[number % 1000 / 100] + x[number % 100 / 10] + i[number % 10];
}

//@ 03
static String rec(int n) {
    if (n >= 1000) return "M" + rec(n - 1000);
    if (n >= 900) return "CM" + rec(n - 900);
    if (n >= 500) return "D" + rec(n - 500);
    if (n >= 400) return "CD" + rec(n - 400);
    if (n >= 100) return "C" + rec(n - 100);
    if (n >= 90) return "XC" + rec(n - 90);
    if (n >= 50) return "L" + rec(n - 50);
    if (n >= 40) return "XL" + rec(n - 40);
    if (n >= 10) return "X" + rec(n - 10);
    if (n == 9) return "IX";
    if (n >= 5) return "V" + rec(n - 5);
    if (n == 4) return "IV";
    return n > 0 ? "I" + rec(n - 1) : "";
}

//@ 04
static String run(int number) {
    TreeMap<Integer, String> numerals = new TreeMap<>();
    String[] names = "M CM D CD C XC L XL X IX V IV I".split(" ");
    int[] amounts = {1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1};
    for (int i = 0; i < names.length; i++) numerals.put(amounts[i], names[i]);
    String roman = "";
    while (number > 0) {
        Map.Entry<Integer, String> e = numerals.floorEntry(number);
        roman += e.getValue();
        number -= e.getKey();
    }
    return roman;
}

//@ 05
/** Starts from strokes and bundles them. */
public static String bundle(int strokes) {
    return "I".repeat(strokes)
        .replace("IIIII", "V").replace("IIII", "IV")
        .replace("VV", "X").replace("VIV", "IX")
        .replace("XXXXX", "L").replace("XXXX", "XL")
        .replace("LL", "C").replace("LXL", "XC")
        .replace("CCCCC", "D").replace("CCCC", "CD")
        .replace("DD", "M").replace("DCD", "CM");
}

//@ 06
private String digitByDigit(int number)
{
    String letters = "IVXLCDM";
    String roman = "";
    int place = 0;
    while (number > 0)
    {
        int d = number % 10;
        String part = "";
        if (d % 5 == 4)
            part = "" + letters.charAt(place) + letters.charAt(place + (d == 4 ? 1 : 2));
        else
        {
            if (d >= 5) part += letters.charAt(place + 1);
            for (int i = 0; i < d % 5; i++) part += letters.charAt(place);
        }
        roman = part + roman;
        place += 2;
        number /= 10;
    }
    return roman;
}

//@ 07
public String process(Integer number) {
    if (number == null || number < 1 || number > 3999) {
        throw new IllegalArgumentException("only 1 to 3999 can be written: " + number);
    }
    Map<String, Integer> weights = new LinkedHashMap<>();
    weights.put("M", 1000); weights.put("CM", 900); weights.put("D", 500); weights.put("CD", 400);
    weights.put("C", 100); weights.put("XC", 90); weights.put("L", 50); weights.put("XL", 40);
    weights.put("X", 10); weights.put("IX", 9); weights.put("V", 5); weights.put("IV", 4); weights.put("I", 1);
    StringBuilder roman = new StringBuilder();
    int left = number;
    for (Map.Entry<String, Integer> w : weights.entrySet()) {
        roman.append(w.getKey().repeat(left / w.getValue()));
        left %= w.getValue();
    }
    return roman.toString();
}

//@ 08
static String spell(int number) {
    String roman = "";
    int place = 1000;
    for (String marks : new String[] {"M--", "CDM", "XLC", "IVX"}) {
        String one = marks.substring(0, 1), five = marks.substring(1, 2), ten = marks.substring(2);
        switch (number / place % 10) {
            case 1: roman += one; break;
            case 2: roman += one + one; break;
            case 3: roman += one + one + one; break;
            case 4: roman += one + five; break;
            case 5: roman += five; break;
            case 6: roman += five + one; break;
            case 7: roman += five + one + one; break;
            case 8: roman += five + one + one + one; break;
            case 9: roman += one + ten; break;
        }
        place /= 10;
    }
    return roman;
}

//@ 09
public static List<String> table(int from, int to) {
    int[] values = {100, 90, 50, 40, 10, 9, 5, 4, 1};
    String[] symbols = {"C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"};
    return IntStream.rangeClosed(from, to).mapToObj(n -> {
        int rest = n;
        String roman = "";
        for (int i = 0; i < values.length; i++)
            for (; rest >= values[i]; rest -= values[i])
                roman += symbols[i];
        return n + " = " + roman;
    }).collect(Collectors.toList());
}

//@ 10
static String f(int n) {
    StringBuilder roman = new StringBuilder();
    for (; n >= 1000; n -= 1000) roman.append('M');
    if (n >= 900) { roman.append("CM"); n -= 900; }
    if (n >= 500) { roman.append('D'); n -= 500; }
    if (n >= 400) { roman.append("CD"); n -= 400; }
    for (; n >= 100; n -= 100) roman.append('C');
    if (n >= 90) { roman.append("XC"); n -= 90; }
    if (n >= 50) { roman.append('L'); n -= 50; }
    if (n >= 40) { roman.append("XL"); n -= 40; }
    for (; n >= 10; n -= 10) roman.append('X');
    if (n == 9) return roman.append("IX").toString();
    if (n >= 5) { roman.append('V'); n -= 5; }
    if (n == 4) return roman.append("IV").toString();
    while (n-- > 0) roman.append('I');
    return roman.toString();
}

//@ 11
String additive(int count) {
    // the old clock-face style: IIII, not IV
    char[] marks = {'M', 'D', 'C', 'L', 'X', 'V', 'I'};
    int worth = 1000;
    String face = "";
    for (int k = 0; k < marks.length; k++) {
        int times = count / worth;
        char[] same = new char[times];
        Arrays.fill(same, marks[k]);
        face += new String(same);
        count -= times * worth;
        worth /= k % 2 == 0 ? 2 : 5;
    }
    return face;
}

//@ 12
public static String patterns(int n) {
    String[] shapes = {"", "a", "aa", "aaa", "ab", "b", "ba", "baa", "baaa", "ac"};
    String[] alphabets = {"IVX", "XLC", "CDM", "M??"};
    String roman = "";
    int p = 0;
    for (int rest = n; rest > 0; rest /= 10) {
        String alpha = alphabets[p++];
        String shape = shapes[rest % 10];
        roman = shape.replace('a', alpha.charAt(0)).replace('b', alpha.charAt(1)).replace('c', alpha.charAt(2)) + roman;
    }
    return roman;
}

//@ 13
static void print(int n, PrintStream stream) {
    int weight = 1000, index = 0;
    String roman = "MDCLXVI";
    while (n > 0) {
        int step = index % 2 == 0 ? weight / 10 : weight / 5;
        if (n >= weight) {
            stream.print(roman.charAt(index));
            n -= weight;
        } else if (weight > 1 && n >= weight - step) {
            stream.print(roman.charAt(index % 2 == 0 ? index + 2 : index + 1));
            n += step;
        } else {
            weight /= index % 2 == 0 ? 2 : 5;
            index++;
        }
    }
    stream.println();
}

//@ 14
/**
 * @param arabic a positive number
 * @return its numerals, in lower case as roman numbers use them
 */
public final String pageNumber(final int arabic) {
    final Object[][] steps = {{100, "c"}, {90, "xc"}, {50, "l"}, {40, "xl"}, {10, "x"},
        {9, "ix"}, {5, "v"}, {4, "iv"}, {1, "i"}};
    int todo = arabic;
    StringBuffer roman = new StringBuffer();
    for (Object[] step : steps) {
        int size = (Integer) step[0];
        while (todo / size > 0) {
            roman.append((String) step[1]);
            todo = todo - size;
        }
    }
    return roman.toString();
}

//@ 15
static Optional<String> solve(String decimal) {
    int n;
    try {
        n = Integer.parseInt(decimal.trim());
    } catch (NumberFormatException bad) {
        return Optional.empty();
    }
    Deque<String> parts = new ArrayDeque<>();
    String[][] rows = {{"I", "V", "X"}, {"X", "L", "C"}, {"C", "D", "M"}};
    for (int r = 0; r < rows.length; r++, n /= 10) {
        int d = n % 10;
        String tail = rows[r][0].repeat(d % 5 == 4 ? 1 : d % 5);
        parts.push(d == 9 ? tail + rows[r][2] : d == 4 ? tail + rows[r][1] : d >= 5 ? rows[r][1] + tail : tail);
    }
    return Optional.of("M".repeat(n) + String.join("", parts));
}

//@ 16
protected String greedy(int number, List<Integer> values, List<String> symbols) {
    if (number == 0 || values.isEmpty()) {
        return "";
    }
    int value = values.get(0);
    if (number >= value) {
        return symbols.get(0) + greedy(number - value, values, symbols);
    }
    return greedy(number, values.subList(1, values.size()), symbols.subList(1, symbols.size()));
}

//@ 17
static String fromDigits(int n) {
  String digits = String.format("%04d", n);
  StringBuilder roman = new StringBuilder();
  char[][] set = {{'M', ' ', ' '}, {'C', 'D', 'M'}, {'X', 'L', 'C'}, {'I', 'V', 'X'}};
  for (int pos = 0; pos < 4; pos++) {
    int d = Character.getNumericValue(digits.charAt(pos));
    if (d == 4 || d == 9) {
      roman.append(set[pos][0]);
      d++;
    }
    if (d == 10) roman.append(set[pos][2]);
    else if (d >= 5) roman.append(set[pos][1]);
    for (int i = 0; i < d % 5; i++) roman.append(set[pos][0]);
  }
  return roman.toString();
}

//@ 18
public static String encodeLatin(int x) {
    StringBuilder plain = new StringBuilder();
    String symbols = "MDCLXVI";
    int[] values = {1000, 500, 100, 50, 10, 5, 1};
    for (int j = 0; j < values.length; x %= values[j++]) {
        for (int t = x / values[j]; t > 0; t--) plain.append(symbols.charAt(j));
    }
    String[] longForms = {"DCCCC", "CCCC", "LXXXX", "XXXX", "VIIII", "IIII"};
    String[] shortForms = {"CM", "CD", "XC", "XL", "IX", "IV"};
    String s = plain.toString();
    for (int j = 0; j < longForms.length; j++) s = s.replaceFirst(longForms[j], shortForms[j]);
    return s;
}

//@ 19
static StringBuilder insertFront(int n) {
    StringBuilder front = new StringBuilder();
    String[] ones = {"I", "X", "C", "M"};
    String[] fives = {"V", "L", "D"};
    for (int e = 0; n != 0 && e < ones.length; e++, n /= 10) {
        int d = n % 10;
        if (d == 9) { front.insert(0, ones[e] + ones[e + 1]); continue; }
        if (d == 4) { front.insert(0, ones[e] + fives[e]); continue; }
        while (d % 5 > 0) { front.insert(0, ones[e]); d--; }
        if (d == 5) front.insert(0, fives[e]);
    }
    return front;
}

//@ 20
public Map<Integer, String> cacheUpTo(int max) {
    Map<Integer, String> known = new HashMap<>();
    int[] values = {1, 4, 5, 9, 10, 40, 50, 90, 100};
    String[] symbols = {"I", "IV", "V", "IX", "X", "XL", "L", "XC", "C"};
    known.put(0, "");
    for (int n = 1, b = 0; n <= max; n++) {
        while (b + 1 < values.length && values[b + 1] <= n) {
            b++;
        }
        // the rest is smaller, so it is already in the map
        known.put(n, symbols[b] + known.get(n - values[b]));
    }
    known.remove(0);
    return known;
}

//@ 21
public static List<String> decades(int last) {
    int[] values = {50, 40, 10};
    String[] symbols = {"L", "XL", "X"};
    List<String> all = new ArrayList<>();
    for (int n = 10; n <= last; n += 10) {
        StringBuilder roman = new StringBuilder();
        int rest = n;
        for (int i = 0; i < values.length; i++) {
            for (; rest >= values[i]; rest -= values[i]) roman.append(symbols[i]);
        }
        all.add(roman.toString());
    }
    return all;
}

//@ 22
static String century(int year) {
    String[] tens = {"", "X", "XX", "XXX"};
    String[] ones = {"", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"};
    int century = (year + 99) / 100;
    String suffix = year < 0 ? " BC" : " AD";
    return tens[century / 10] + ones[century % 10] + suffix;
}

//@ 23
static String byMap(int number) {
    TreeMap<Integer, String> map = new TreeMap<>();
    map.put(1000, "M"); map.put(900, "CM"); map.put(500, "D"); map.put(400, "CD");
    map.put(100, "C"); map.put(90, "XC"); map.put(50, "L"); map.put(40, "XL");
    map.put(10, "X"); map.put(9, "IX"); map.put(5, "V"); map.put(4, "IV"); map.put(1, "I");
    int floor = map.floorKey(number);
    if (number == floor) {
        return map.get(number);
    }
    return map.get(floor) + byMap(number - floor);
}

//@ 24
String recursive(int n) {
    if (n >= 100) return "C" + recursive(n - 100);
    if (n >= 90) return "XC" + recursive(n - 90);
    if (n >= 50) return "L" + recursive(n - 50);
    if (n >= 40) return "XL" + recursive(n - 40);
    if (n >= 10) return "X" + recursive(n - 10);
    if (n == 9) return "IX";
    if (n >= 5) return "V" + recursive(n - 5);
    if (n == 4) return "IV";
    return n > 0 ? "I" + recursive(n - 1) : "";
}

//@ 25
public static String byRepeat(int n) {
    return "I".repeat(n)
        .replace("IIIII", "V")
        .replace("IIII", "IV")
        .replace("VV", "X")
        .replace("VIV", "IX")
        .replace("XXXXX", "L")
        .replace("XXXX", "XL")
        .replace("LL", "C")
        .replace("LXL", "XC");
}

//@ 26
public static int romanToInt(String s) {
    Map<Character, Integer> values = Map.of('I', 1, 'V', 5, 'X', 10, 'L', 50, 'C', 100, 'D', 500, 'M', 1000);
    int total = 0;
    for (int i = 0; i < s.length(); i++) {
        int value = values.get(s.charAt(i));
        if (i + 1 < s.length() && value < values.get(s.charAt(i + 1))) {
            total -= value;
        } else {
            total += value;
        }
    }
    return total;
}

//@ 27
static int parseRoman(String roman) {
    int sum = 0, previous = 0;
    for (int i = roman.length() - 1; i >= 0; i--) {
        int value;
        switch (roman.charAt(i)) {
            case 'I': value = 1; break;
            case 'V': value = 5; break;
            case 'X': value = 10; break;
            case 'L': value = 50; break;
            case 'C': value = 100; break;
            case 'D': value = 500; break;
            default: value = 1000;
        }
        sum += value < previous ? -value : value;
        previous = value;
    }
    return sum;
}

//@ 28
static String checkedRoman(int n) {
    if (n < 1 || n > 3999) {
        throw new IllegalArgumentException("roman numerals go from 1 to 3999");
    }
    String[] letters = {"M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"};
    int[] weights = {1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1};
    String result = "";
    for (int i = 0; n > 0; i++) {
        int times = n / weights[i];
        result += letters[i].repeat(times);
        n %= weights[i];
    }
    return result;
}

//@ 29
String oneDigit(int digit, char one, char five, char ten) {
    StringBuilder sb = new StringBuilder();
    if (digit == 9) return sb.append(one).append(ten).toString();
    if (digit == 4) return sb.append(one).append(five).toString();
    if (digit >= 5) {
        sb.append(five);
        digit -= 5;
    }
    while (digit-- > 0) sb.append(one);
    return sb.toString();
}

//@ 30
static String fromList(int year) {
    List<Integer> values = List.of(1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1);
    List<String> symbols = List.of("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I");
    StringBuilder roman = new StringBuilder();
    int i = 0;
    while (year > 0) {
        if (year >= values.get(i)) {
            roman.append(symbols.get(i));
            year -= values.get(i);
        } else {
            i++;
        }
    }
    return roman.toString();
}

//@ 31
public static int valueOf(String roman) {
    String text = roman.toUpperCase()
        .replace("CM", "DCCCC").replace("CD", "CCCC")
        .replace("XC", "LXXXX").replace("XL", "XXXX")
        .replace("IX", "VIIII").replace("IV", "IIII");
    int total = 0;
    for (char c : text.toCharArray()) {
        int at = "IVXLCDM".indexOf(c);
        total += new int[] {1, 5, 10, 50, 100, 500, 1000}[at];
    }
    return total;
}

//@ 32
static String hours(int hour) {
    String[] numerals = {"XII", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI"};
    if (hour < 0 || hour > 24) {
        return "";
    }
    return numerals[hour % 12];
}
