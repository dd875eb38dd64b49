// SPDX-License-Identifier: Apache-2.0
// Family: count how often each word occurs.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static Map<String, Integer> wordCount(String text) {
    Map<String, Integer> counts = new HashMap<>();
    for (String word : text.split("\\s+")) {
        if (counts.containsKey(word)) {
            counts.put(word, counts.get(word) + 1);
        } else {
            counts.put(word, 1);
        }
    }
    return counts;
}

//@ 02
Map<String, Long> histogram(String s) {
    return Arrays.stream(s.toLowerCase().split("\\W+"))
            .filter(w -> !w.isEmpty())
            .collect(Collectors.groupingBy(w -> w, TreeMap::new, Collectors.counting()));
}

//@ 03
static TreeMap<String, Integer> freq(List<String> tokens) {
    TreeMap<String, Integer> table = new TreeMap<>();
    for (String t : tokens) {
        table.merge(t.trim(), 1, Integer::sum);
    }
    return table;
}

//@ 04
public Hashtable<String, Integer> run(String input)
{
    Hashtable<String, Integer> h = new Hashtable<String, Integer>();
    StringTokenizer st = new StringTokenizer(input, " \t\n\r.,;:!?");
    while (st.hasMoreTokens())
    {
        String key = st.nextToken();
        Integer old = h.get(key);
        h.put(key, old == null ? Integer.valueOf(1) : Integer.valueOf(old.intValue() + 1));
    }
    return h;
}

//@ 05
/** Scans letter by letter, no regular expressions. */
static Map<String, Integer> scan(CharSequence cs) {
    Map<String, Integer> m = new LinkedHashMap<>();
    StringBuilder cur = new StringBuilder();
    for (int i = 0; i <= cs.length(); i++) {
        char c = i < cs.length() ? cs.charAt(i) : ' ';
        if (Character.isLetterOrDigit(c)) {
            cur.append(Character.toLowerCase(c));
        } else if (cur.length() > 0) {
            String w = cur.toString();
            m.put(w, m.getOrDefault(w, 0) + 1);
            cur.setLength(0);
        }
    }
    return m;
}

//@ 06
public static Map<String, Integer> process(Scanner in) {
    Map<String, Integer> tally = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    while (in.hasNext()) {
        String next = in.next().replaceAll("[^A-Za-z']", "");
        if (next.length() == 0) continue;
        tally.compute(next, (k, v) -> v == null ? 1 : v + 1);
    }
    return tally;
}

//@ 07
static void tallyInto(Map<String, int[]> store, String... words) {
    for (String w : words) {
        int[] cell = store.get(w);
        if (cell == null) {
            cell = new int[1];
            store.put(w, cell);
        }
        cell[0]++;
    }
}

//@ 08
public List<Map.Entry<String, Integer>> mostFrequent(String document, int limit) {
    Map<String, Integer> bag = new HashMap<>();
    for (String term : document.split("[^\\p{L}]+")) {
        bag.merge(term.toLowerCase(), 1, (a, b) -> a + b);
    }
    bag.remove("");
    List<Map.Entry<String, Integer>> ranked = new ArrayList<>(bag.entrySet());
    ranked.sort((x, y) -> y.getValue() - x.getValue());
    return ranked.subList(0, Math.min(limit, ranked.size()));
}

//@ 09
static String report(String[] words) {
    String[] sorted = words.clone();
    Arrays.sort(sorted);
    StringBuilder sb = new StringBuilder();
    for (int i = 0, n; i < sorted.length; i += n) {
        n = 1;
        while (i + n < sorted.length && sorted[i + n].equals(sorted[i])) {
            n++;
        }
        sb.append(sorted[i]).append(": ").append(n).append('\n');
    }
    return sb.toString();
}

//@ 10
public Map<String, Integer> readAndCount(BufferedReader reader) throws IOException {
    Map<String, Integer> result = new HashMap<String, Integer>();
    String line;
    while ((line = reader.readLine()) != null) {
        line = line.trim();
        if (line.isEmpty()) {
            continue;
        }
        for (String piece : line.split(" ")) {
            int soFar = result.containsKey(piece) ? result.get(piece) : 0;
            result.put(piece, soFar + 1);
        }
    }
    return result;
}

//@ 11
private static Map<String, Integer> f(Iterator<String> it, Map<String, Integer> acc) {
    if (!it.hasNext()) {
        return acc;
    }
    acc.merge(it.next(), 1, Math::addExact);
    return f(it, acc);
}

//@ 12
static Map<String, Integer> uniqueThenCount(String sentence) {
    List<String> all = Arrays.asList(sentence.toUpperCase().split(" +"));
    Set<String> distinct = new TreeSet<>(all);
    Map<String, Integer> answer = new LinkedHashMap<>();
    for (String d : distinct)
        answer.put(d, Collections.frequency(all, d));
    return answer;
}

//@ 13
public static Map<String, Integer> occurrences(Stream<String> lines) {
    return lines
        .flatMap(l -> Stream.of(l.split("[ ,.]")))
        .map(String::strip)
        .filter(x -> x.length() > 0)
        .collect(Collectors.toMap(x -> x, x -> 1, Integer::sum));
}

//@ 14
int[] countGiven(String text, String[] vocabulary) {
    int[] hits = new int[vocabulary.length];
    List<String> known = Arrays.asList(vocabulary);
    for (String w : text.split("\\b")) {
        int index = known.indexOf(w);
        if (index >= 0) {
            hits[index]++;
        }
    }
    return hits;
}

//@ 15
/**
 * Keeps two lists side by side instead of a map.
 */
static Map<String, Integer> parallelLists(String body) {
    ArrayList<String> names = new ArrayList<>();
    ArrayList<Integer> numbers = new ArrayList<>();
    java.util.regex.Matcher matcher = java.util.regex.Pattern.compile("\\w+").matcher(body);
    while (matcher.find()) {
        int at = names.indexOf(matcher.group());
        if (at < 0) {
            names.add(matcher.group());
            numbers.add(1);
        } else {
            numbers.set(at, numbers.get(at) + 1);
        }
    }
    return IntStream.range(0, names.size()).boxed().collect(Collectors.toMap(names::get, numbers::get));
}

//@ 16
public static final Map<String, Integer> countSkipping(String article, Set<String> stopWords) {
    if (article == null) {
        return Collections.emptyMap();
    }
    final Map<String, Integer> frequency = new TreeMap<>();
    for (final String raw : article.split("[\\s\\p{Punct}]+")) {
        final String w = raw.toLowerCase(Locale.ROOT);
        if (w.isEmpty() || stopWords.contains(w)) {
            continue;
        }
        frequency.putIfAbsent(w, 0);
        frequency.computeIfPresent(w, (key, n) -> n + 1);
    }
    return frequency;
}

//@ 17
Map<Integer, List<String>> byCount(String txt) {
  Map<String, Integer> c = new HashMap<>();
  for (String w : txt.split(" ")) c.merge(w, 1, Integer::sum);
  Map<Integer, List<String>> inverse = new TreeMap<>(Comparator.reverseOrder());
  for (Map.Entry<String, Integer> e : c.entrySet()) {
    inverse.computeIfAbsent(e.getValue(), k -> new ArrayList<>()).add(e.getKey());
  }
  return inverse;
}

//@ 18
static String solve(String s) {
    int best = 0;
    String winner = null;
    Map<String, Integer> map = new HashMap<>();
    for (String w : s.toLowerCase().split("[^a-z]+")) {
        int now = map.merge(w, 1, Integer::sum);
        if (now > best && !w.isEmpty()) {
            best = now;
            winner = w;
        }
    }
    return winner + "=" + best;
}

//@ 19
public SortedMap<String, Integer> analyse(Collection<String> sentences) {
    SortedMap<String, Integer> index = new TreeMap<>();
    for (String sentence : sentences) {
        int from = 0;
        while (from < sentence.length()) {
            int blank = sentence.indexOf(' ', from);
            if (blank < 0) blank = sentence.length();
            if (blank > from) {
                String w = sentence.substring(from, blank);
                Integer v = index.get(w);
                index.put(w, (v != null ? v : 0) + 1);
            }
            from = blank + 1;
        }
    }
    return index;
}

//@ 20
protected Map<String, Integer> removeAndCount(List<String> words) {
    Map<String, Integer> found = new LinkedHashMap<>();
    List<String> left = new LinkedList<>(words);
    while (!left.isEmpty()) {
        String w = left.get(0);
        int before = left.size();
        left.removeAll(Collections.singleton(w));
        found.put(w, before - left.size());
    }
    return found;
}

//@ 21
static Map<String, Integer> countWords(String text) {
    Map<String, Integer> counts = new TreeMap<>();
    for (String word : text.toLowerCase().split("\\W+")) {
        if (!word.isEmpty()) {
            counts.put(word, counts.getOrDefault(word, 0) + 1);
        }
    }
    return counts;
}

//@ 22
public Map<String, Integer> tally(List<String> words) {
    Map<String, Integer> result = new HashMap<>();
    for (String word : words) {
        Integer count = result.get(word);
        if (count == null) {
            result.put(word, 1);
        } else {
            result.put(word, count + 1);
        }
    }
    return result;
}

//@ 23
static Map<String, Long> grouped(String text) {
    return Stream.of(text.trim().split("\\s+"))
        .map(String::toLowerCase)
        .collect(Collectors.groupingBy(word -> word, Collectors.counting()));
}

//@ 24
Map<String, Integer> fromScanner(String text) {
    Map<String, Integer> counts = new HashMap<>();
    Scanner scanner = new Scanner(text);
    while (scanner.hasNext()) {
        String word = scanner.next().toLowerCase();
        counts.merge(word, 1, Integer::sum);
    }
    scanner.close();
    return counts;
}

//@ 25
public static void printCounts(String[] words) {
    Map<String, Integer> counts = new TreeMap<>();
    for (String word : words) {
        counts.merge(word, 1, Integer::sum);
    }
    for (Map.Entry<String, Integer> entry : counts.entrySet()) {
        System.out.println(entry.getKey() + ": " + entry.getValue());
    }
}

//@ 26
static Map<String, Integer> countFile(File file) throws IOException {
    Map<String, Integer> counts = new HashMap<>();
    try (BufferedReader reader = new BufferedReader(new FileReader(file))) {
        String line;
        while ((line = reader.readLine()) != null) {
            for (String word : line.split("\\s+")) {
                counts.put(word, counts.containsKey(word) ? counts.get(word) + 1 : 1);
            }
        }
    }
    return counts;
}

//@ 27
public String mostCommon(String text) {
    Map<String, Integer> counts = new HashMap<>();
    for (String word : text.split(" ")) {
        counts.put(word, counts.getOrDefault(word, 0) + 1);
    }
    String best = null;
    for (String word : counts.keySet()) {
        if (best == null || counts.get(word) > counts.get(best)) best = word;
    }
    return best;
}

//@ 28
static Map<String, Integer> tokens(String sentence) {
    StringTokenizer tokenizer = new StringTokenizer(sentence);
    Map<String, Integer> counts = new LinkedHashMap<>();
    while (tokenizer.hasMoreTokens()) {
        String token = tokenizer.nextToken();
        counts.putIfAbsent(token, 0);
        counts.put(token, counts.get(token) + 1);
    }
    return counts;
}

//@ 29
public static List<String> repeated(String text, int times) {
    Map<String, Integer> counts = new TreeMap<>();
    for (String word : text.toLowerCase().split("[^a-z]+")) {
        counts.merge(word, 1, Integer::sum);
    }
    List<String> found = new ArrayList<>();
    counts.forEach((word, count) -> {
        if (count >= times) found.add(word);
    });
    return found;
}

//@ 30
Map<String, Integer> sortedByCount(String text) {
    Map<String, Integer> counts = new HashMap<>();
    for (String word : text.split("\\s+")) {
        counts.compute(word, (key, old) -> old == null ? 1 : old + 1);
    }
    List<Map.Entry<String, Integer>> entries = new ArrayList<>(counts.entrySet());
    entries.sort(Map.Entry.comparingByValue(Comparator.reverseOrder()));
    Map<String, Integer> sorted = new LinkedHashMap<>();
    for (Map.Entry<String, Integer> entry : entries) sorted.put(entry.getKey(), entry.getValue());
    return sorted;
}

//@ 31
static int countOne(String text, String wanted) {
    int count = 0;
    for (String word : text.split("\\W+")) {
        if (word.equalsIgnoreCase(wanted)) {
            count++;
        }
    }
    return count;
}

//@ 32
static Map<String, Integer> longWords(Collection<String> lines, int min) {
    Map<String, Integer> counts = new TreeMap<>();
    for (String line : lines) {
        for (String word : line.split("[\\s,.;]+")) {
            if (word.length() < min) continue;
            if (!counts.containsKey(word)) counts.put(word, 0);
            counts.put(word, counts.get(word) + 1);
        }
    }
    return counts;
}
