// SPDX-License-Identifier: Apache-2.0
// Family: does every bracket of a text close in the right order?
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static boolean isBalanced(String s) {
    Stack<Character> stack = new Stack<>();
    for (char c : s.toCharArray()) {
        if (c == '(' || c == '[' || c == '{') {
            stack.push(c);
        } else if (c == ')' || c == ']' || c == '}') {
            if (stack.isEmpty()) return false;
            char open = stack.pop();
            if (c == ')' && open != '(') return false;
            if (c == ']' && open != '[') return false;
            if (c == '}' && open != '{') return false;
        }
    }
    return stack.isEmpty();
}

//@ 02
boolean check(String text) {
    Map<Character, Character> pairs = Map.of(')', '(', ']', '[', '}', '{');
    Deque<Character> stack = new ArrayDeque<>();
    for (int i = 0; i < text.length(); i++) {
        char c = text.charAt(i);
        if (pairs.containsValue(c)) {
            stack.push(c);
        } else if (pairs.containsKey(c) && !pairs.get(c).equals(stack.poll())) {
            return false;
        }
    }
    return stack.isEmpty();
}

//@ 03
static boolean parens(String expression)
{
    int depth = 0;
    for (int i = 0; i < expression.length(); i++)
    {
        if (expression.charAt(i) == '(')
            depth++;
        else if (expression.charAt(i) == ')')
            depth--;
        if (depth < 0)
            return false;
    }
    return depth == 0;
}

//@ 04
/** Removes innermost pairs until nothing changes. */
public boolean erase(String brackets) {
    String rest = brackets;
    int before;
    do {
        before = rest.length();
        rest = rest.replace("()", "").replace("[]", "").replace("{}", "");
    } while (rest.length() < before);
    return rest.isEmpty();
}

//@ 05
static boolean f(String s, String open) {
    if (s.isEmpty()) return open.isEmpty();
    char c = s.charAt(0);
    String rest = s.substring(1);
    int closing = ")]}".indexOf(c);
    if ("([{".indexOf(c) >= 0) {
        return f(rest, c + open);
    } else if (closing >= 0) {
        return !open.isEmpty() && open.charAt(0) == "([{".charAt(closing) && f(rest, open.substring(1));
    }
    return f(rest, open);
}

//@ 06
public static boolean matches(final String line) {
    final String opening = "([{<";
    final String closing = ")]}>";
    LinkedList<Integer> stack = new LinkedList<Integer>();
    for (int pos = 0; pos < line.length(); pos++) {
        int kind = opening.indexOf(line.charAt(pos));
        if (kind != -1) {
            stack.addLast(kind);
            continue;
        }
        kind = closing.indexOf(line.charAt(pos));
        if (kind != -1) {
            if (stack.isEmpty() || stack.removeLast() != kind) return false;
        }
    }
    return stack.size() == 0;
}

//@ 07
boolean solve(String s) {
    Deque<Character> expected = new ArrayDeque<>();
    for (char c : s.toCharArray()) {
        switch (c) {
            case '(': expected.push(')'); break;
            case '[': expected.push(']'); break;
            case '{': expected.push('}'); break;
            case ')': case ']': case '}':
                if (expected.isEmpty() || expected.pop() != c) return false;
                break;
            default: // any other character
        }
    }
    return expected.isEmpty();
}

//@ 08
private static boolean run(char[] chars) {
    char[] stack = new char[chars.length];
    int top = 0;
    for (char c : chars) {
        if (c == '(' || c == '{' || c == '[') {
            stack[top++] = c;
        }
        if (c == ')' || c == '}' || c == ']') {
            if (top == 0) {
                return false;
            }
            char open = stack[--top];
            // ')' follows '(' in ASCII, the others are two apart
            if (c - open != 1 && c - open != 2) {
                return false;
            }
        }
    }
    return top == 0;
}

//@ 09
/**
 * @return the position of the first wrong bracket, or -1 when all is well
 */
static int firstError(String source) {
    Stack<Integer> positions = new Stack<>();
    for (int i = 0; i < source.length(); i++) {
        char c = source.charAt(i);
        if ("([{".indexOf(c) >= 0) positions.push(i);
        int closing = ")]}".indexOf(c);
        if (closing < 0) continue;
        if (positions.empty()) return i;
        char open = source.charAt(positions.pop());
        if (open != "([{".charAt(closing)) return i;
    }
    return positions.empty() ? -1 : positions.peek();
}

//@ 10
public static boolean byRegex(String input) {
    String s = input.replaceAll("[^\\[\\](){}]", "");
    String shorter = s.replaceAll("\\(\\)|\\[\\]|\\{\\}", "");
    while (!shorter.equals(s)) {
        s = shorter;
        shorter = s.replaceAll("\\(\\)|\\[\\]|\\{\\}", "");
    }
    return s.length() == 0;
}

//@ 11
static boolean foldDepth(String s) {
    int depth = s.chars()
        .filter(c -> c == '(' || c == ')')
        .map(c -> c == '(' ? 1 : -1)
        .reduce(0, (sum, step) -> sum < 0 ? sum : sum + step);
    return depth == 0;
}

//@ 12
boolean process(CharSequence code) {
    StringBuilder stack = new StringBuilder();
    for (int i = 0; i < code.length(); i++) {
        char c = code.charAt(i);
        int last = stack.length() - 1;
        if (c == '(' || c == '[' || c == '{') {
            stack.append(c);
        } else if (last >= 0 && (stack.charAt(last) + "" + c).matches("\\(\\)|\\[\\]|\\{\\}")) {
            stack.deleteCharAt(last);
        } else if (c == ')' || c == ']' || c == '}') {
            return false;
        }
    }
    return stack.length() == 0;
}

//@ 13
public int nesting(String s) {
    int depth = 0, deepest = 0;
    for (char c : s.toCharArray()) {
        if (c == '(' || c == '[' || c == '{') {
            depth++;
            deepest = Math.max(deepest, depth);
        } else if (c == ')' || c == ']' || c == '}') {
            depth--;
        }
        if (depth < 0) {
            return -1; // closed too often
        }
    }
    return depth == 0 ? deepest : -1;
}

//@ 14
static boolean balanced(List<String> tokens) {
    LinkedList<String> open = new LinkedList<>();
    for (String token : tokens) {
        if (token.equals("(") || token.equals("[") || token.equals("{")) {
            open.push(token);
        } else if (token.equals(")")) {
            if (!"(".equals(open.poll())) return false;
        } else if (token.equals("]")) {
            if (!"[".equals(open.poll())) return false;
        } else if (token.equals("}")) {
            if (!"{".equals(open.poll())) return false;
        }
    }
    return open.isEmpty();
}

//@ 15
public static boolean isWellFormed(Reader reader) throws IOException {
    Stack<Character> stack = new Stack<Character>();
    int c;
    while ((c = reader.read()) != -1) {
        if (c == '(') stack.push(')');
        else if (c == '[') stack.push(']');
        else if (c == '{') stack.push('}');
        else if (c == ')' || c == ']' || c == '}') {
            if (stack.isEmpty() || stack.pop().charValue() != c) {
                return false;
            }
        }
    }
    return stack.isEmpty();
}

//@ 16
void require(String formula) {
    int open = 0;
    for (int at = 0; at < formula.length(); at++) {
        char c = formula.charAt(at);
        if (c == '(') {
            open++;
        } else if (c == ')' && --open < 0) {
            throw new IllegalArgumentException("unexpected ')' at " + at);
        }
    }
    if (open > 0) {
        throw new IllegalArgumentException(open + " times ')' is missing");
    }
}

//@ 17
static int missing(String s) {
    int open = 0;
    int toAdd = 0;
    for (char c : s.toCharArray()) {
        if (c == '(') {
            open++;
        } else if (c == ')') {
            if (open > 0) open--;
            else toAdd++;
        }
    }
    // zero means balanced
    return toAdd + open;
}

//@ 18
protected boolean closesProperly(String text) {
  if (text == null || text.length() == 0) return true;
  Stack<String> stack = new Stack<String>();
  String[] symbols = text.split("");
  for (String symbol : symbols) {
    if ("([{".contains(symbol)) {
      stack.push(symbol);
    } else if (")]}".contains(symbol)) {
      String pair = stack.isEmpty() ? symbol : stack.pop() + symbol;
      if (!Arrays.asList("()", "[]", "{}").contains(pair)) return false;
    }
  }
  return stack.isEmpty();
}

//@ 19
static boolean outsideQuotes(String s) {
    Deque<Character> stack = new ArrayDeque<>();
    boolean quoted = false;
    for (char c : s.toCharArray()) {
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == '(' || c == '[' || c == '{') stack.push(c);
        boolean closing = c == ')' || c == ']' || c == '}';
        if (closing) {
            Character open = stack.pollFirst();
            if (open == null || "()[]{}".indexOf("" + open + c) < 0) return false;
        }
    }
    return !quoted && stack.isEmpty();
}

//@ 20
public boolean validate(String s, int[] counts) {
    Arrays.fill(counts, 0);
    ArrayList<Integer> stack = new ArrayList<>();
    for (char c : s.toCharArray()) {
        int kind = "()[]{}".indexOf(c);
        if (kind < 0) continue;
        counts[kind]++;
        if (kind % 2 == 0) {
            stack.add(kind + 1);
        } else if (stack.isEmpty() || stack.remove(stack.size() - 1) != kind) {
            return false;
        }
    }
    return counts[0] == counts[1] && counts[2] == counts[3] && counts[4] == counts[5];
}

//@ 21
public boolean isValid(String s) {
    Stack<Character> stack = new Stack<>();
    for (int i = 0; i < s.length(); i++) {
        char c = s.charAt(i);
        if (c == '(') stack.push(')');
        else if (c == '{') stack.push('}');
        else if (c == '[') stack.push(']');
        else if (stack.isEmpty() || stack.pop() != c) return false;
    }
    return stack.isEmpty();
}

//@ 22
static boolean pairsMatch(String text) {
    Map<Character, Character> closing = new HashMap<>();
    closing.put('(', ')');
    closing.put('[', ']');
    closing.put('{', '}');
    Stack<Character> open = new Stack<>();
    for (char c : text.toCharArray()) {
        if (closing.containsKey(c)) {
            open.push(c);
        } else if (closing.containsValue(c)) {
            if (open.isEmpty() || closing.get(open.pop()) != c) return false;
        }
    }
    return open.empty();
}

//@ 23
public static boolean balancedParentheses(String s) {
    int open = 0;
    for (char c : s.toCharArray()) {
        if (c == '(') open++;
        if (c == ')') open--;
        if (open < 0) return false;
    }
    return open == 0;
}

//@ 24
boolean twoKinds(String s) {
    Deque<Character> stack = new LinkedList<>();
    for (char c : s.toCharArray()) {
        if (c == '(' || c == '[') {
            stack.addFirst(c);
        } else if (c == ')') {
            if (stack.isEmpty() || stack.removeFirst() != '(') return false;
        } else if (c == ']') {
            if (stack.isEmpty() || stack.removeFirst() != '[') return false;
        }
    }
    return stack.isEmpty();
}

//@ 25
static boolean recursive(String s, int at, int depth) {
    if (depth < 0) return false;
    if (at == s.length()) return depth == 0;
    switch (s.charAt(at)) {
        case '(': return recursive(s, at + 1, depth + 1);
        case ')': return recursive(s, at + 1, depth - 1);
        default: return recursive(s, at + 1, depth);
    }
}

//@ 26
public static int longestValid(String s) {
    Stack<Integer> stack = new Stack<>();
    stack.push(-1);
    int longest = 0;
    for (int i = 0; i < s.length(); i++) {
        if (s.charAt(i) == '(') {
            stack.push(i);
        } else {
            stack.pop();
            if (stack.isEmpty()) stack.push(i);
            else longest = Math.max(longest, i - stack.peek());
        }
    }
    return longest;
}

//@ 27
boolean process(String s) {
    String left = "([{";
    String right = ")]}";
    Deque<Integer> stack = new ArrayDeque<>();
    for (char c : s.toCharArray()) {
        if (left.indexOf(c) >= 0) {
            stack.push(left.indexOf(c));
        } else if (right.indexOf(c) >= 0) {
            if (stack.isEmpty() || stack.pop() != right.indexOf(c)) {
                return false;
            }
        }
    }
    return stack.isEmpty();
}

//@ 28
static boolean angleTags(List<String> tags) {
    Deque<String> open = new ArrayDeque<>();
    for (String tag : tags) {
        if (tag.startsWith("</")) {
            String name = tag.substring(2, tag.length() - 1);
            if (open.isEmpty() || !open.pop().equals(name)) return false;
        } else {
            open.push(tag.substring(1, tag.length() - 1));
        }
    }
    return open.isEmpty();
}

//@ 29
public static int unmatched(String code) {
    Stack<Character> stack = new Stack<>();
    int errors = 0;
    for (char c : code.toCharArray()) {
        if ("([{".indexOf(c) != -1) {
            stack.push(c);
        } else if (")]}".indexOf(c) != -1) {
            if (!stack.isEmpty() && "([{".indexOf(stack.peek()) == ")]}".indexOf(c)) stack.pop();
            else errors++;
        }
    }
    return errors + stack.size();
}

//@ 30
boolean shrinking(StringBuilder text) {
    boolean changed = true;
    while (changed) {
        changed = false;
        for (String pair : new String[] {"()", "[]", "{}"}) {
            int at = text.indexOf(pair);
            if (at >= 0) {
                text.delete(at, at + 2);
                changed = true;
            }
        }
    }
    return text.length() == 0;
}

//@ 31
static int[] partners(String s) {
    int[] partner = new int[s.length()];
    Arrays.fill(partner, -1);
    Deque<Integer> open = new ArrayDeque<>();
    for (int i = 0; i < s.length(); i++) {
        if (s.charAt(i) == '(') open.push(i);
        if (s.charAt(i) == ')') {
            if (open.isEmpty()) throw new IllegalStateException("no '(' for position " + i);
            int j = open.pop();
            partner[i] = j;
            partner[j] = i;
        }
    }
    return partner;
}

//@ 32
public boolean verify(char[] code, int max) {
    char[] expected = new char[max];
    int size = 0;
    for (char c : code) {
        if (c == '(') expected[size++] = ')';
        else if (c == '[') expected[size++] = ']';
        else if (c == '{') expected[size++] = '}';
        else if (c == ')' || c == ']' || c == '}') {
            if (size == 0 || expected[--size] != c) return false;
        }
        if (size == max) return false;
    }
    return size == 0;
}
