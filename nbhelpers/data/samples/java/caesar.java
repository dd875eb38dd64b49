// SPDX-License-Identifier: Apache-2.0
// Family: shift the letters of a text along the alphabet.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static String encrypt(String text, int shift) {
    StringBuilder result = new StringBuilder();
    for (char c : text.toCharArray()) {
        if (Character.isUpperCase(c)) {
            result.append((char) ((c - 'A' + shift) % 26 + 'A'));
        } else if (Character.isLowerCase(c)) {
            result.append((char) ((c - 'a' + shift) % 26 + 'a'));
        } else {
            result.append(c);
        }
    }
    return result.toString();
}

//@ 02
String run(String message, int key) {
    String alphabet = "abcdefghijklmnopqrstuvwxyz";
    String cipher = "";
    for (int i = 0; i < message.length(); i++) {
        int pos = alphabet.indexOf(message.charAt(i));
        if (pos < 0) {
            cipher += message.charAt(i);
        } else {
            cipher += alphabet.charAt((pos + key) % 26);
        }
    }
    return cipher;
}

//@ 03
static String rot(String s, int shift) {
    return s.chars()
        .map(c -> c >= 'a' && c <= 'z' ? (c - 'a' + shift) % 26 + 'a' : c)
        .mapToObj(c -> String.valueOf((char) c))
        .collect(Collectors.joining());
}

//@ 04
/** Thirteen places: the same call encrypts and decrypts. */
public String rot13(String text)
{
    char[] chars = text.toCharArray();
    for (int i = 0; i < chars.length; i++)
    {
        char c = chars[i];
        if (c >= 'a' && c <= 'm' || c >= 'A' && c <= 'M')
            chars[i] += 13;
        else if (c >= 'n' && c <= 'z' || c >= 'N' && c <= 'Z')
            chars[i] -= 13;
    }
    return new String(chars);
}

//@ 05
static String f(String s, int key) {
    if (s.isEmpty()) {
        return "";
    }
    char c = s.charAt(0);
    if (c >= 'A' && c <= 'Z') {
        c = (char) ('A' + (c - 'A' + key) % 26);
    }
    return c + f(s.substring(1), key);
}

//@ 06
public static String decrypt(String cipherText, int key) {
    StringBuilder plain = new StringBuilder(cipherText.length());
    for (int i = 0; i < cipherText.length(); i++) {
        char c = cipherText.charAt(i);
        if (Character.isLetter(c)) {
            char base = Character.isUpperCase(c) ? 'A' : 'a';
            plain.append((char) ((c - base - key + 26) % 26 + base));
        } else {
            plain.append(c);
        }
    }
    return plain.toString();
}

//@ 07
String process(String text, int shift) {
    Map<Character, Character> table = new HashMap<>();
    for (int i = 0; i < 26; i++) {
        table.put((char) ('a' + i), (char) ('a' + (i + shift) % 26));
        table.put((char) ('A' + i), (char) ('A' + (i + shift) % 26));
    }
    StringBuilder sb = new StringBuilder();
    for (char c : text.toCharArray()) {
        sb.append(table.getOrDefault(c, c));
    }
    return sb.toString();
}

//@ 08
static String viaTables(String text, int shift) {
    String alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    String shifted = alphabet.substring(shift % 26) + alphabet.substring(0, shift % 26);
    StringBuilder cipher = new StringBuilder(text.toUpperCase());
    for (int i = 0; i < cipher.length(); i++) {
        int index = alphabet.indexOf(cipher.charAt(i));
        if (index != -1) {
            cipher.setCharAt(i, shifted.charAt(index));
        }
    }
    return cipher.toString();
}

//@ 09
private String solve(String text, int key) {
    List<Character> alphabet = new ArrayList<>();
    for (char c = 'a'; c <= 'z'; c++) {
        alphabet.add(c);
    }
    List<Character> rotated = new ArrayList<>(alphabet);
    Collections.rotate(rotated, -key);
    String result = "";
    for (char c : text.toLowerCase().toCharArray()) {
        result += alphabet.contains(c) ? rotated.get(alphabet.indexOf(c)) : c;
    }
    return result;
}

//@ 10
public static void encodeInPlace(char[] letters, int shift) {
    int key = Math.floorMod(shift, 26);
    for (int i = 0; i < letters.length; i++) {
        if (letters[i] >= 'a' && letters[i] <= 'z') {
            letters[i] = (char) (letters[i] + key);
            if (letters[i] > 'z') {
                letters[i] -= 26;
            }
        }
    }
}

//@ 11
static void cipher(Reader in, Writer out, int shift) throws IOException {
    for (int c = in.read(); c != -1; c = in.read()) {
        if (c >= 'a' && c <= 'z') {
            out.write('a' + (c - 'a' + shift) % 26);
        } else if (c >= 'A' && c <= 'Z') {
            out.write('A' + (c - 'A' + shift) % 26);
        } else {
            out.write(c);
        }
    }
}

//@ 12
/**
 * All 26 readings of an intercepted text, for a human to choose from.
 */
public List<String> crack(String cipherText) {
    List<String> plain = new ArrayList<>();
    for (int key = 0; key < 26; key++) {
        StringBuilder sb = new StringBuilder();
        for (char c : cipherText.toCharArray()) {
            boolean letter = c >= 'A' && c <= 'Z';
            sb.append(letter ? (char) ('A' + (c - 'A' + 26 - key) % 26) : c);
        }
        plain.add(key + ": " + sb);
    }
    return plain;
}

//@ 13
static byte[] shiftBytes(byte[] ascii, int key) {
    byte[] result = ascii.clone();
    for (int i = 0; i < result.length; i++) {
        int lower = result[i] | 0x20;
        if (lower < 'a' || lower > 'z') {
            continue;
        }
        int moved = (lower - 'a' + key % 26 + 26) % 26 + 'a';
        result[i] = (byte) (moved - (lower - result[i]));
    }
    return result;
}

//@ 14
String stepByStep(String text, int shift) {
    while (shift-- > 0) {
        String next = "";
        for (char c : text.toCharArray()) {
            // one place at a time
            if (c == 'z') next += 'a';
            else if (c == 'Z') next += 'A';
            else if (Character.isLetter(c)) next += (char) (c + 1);
            else next += c;
        }
        text = next;
    }
    return text;
}

//@ 15
public static String byMatcher(String message, int key) {
    return java.util.regex.Pattern.compile("[A-Za-z]").matcher(message).replaceAll(m -> {
        char c = m.group().charAt(0);
        char base = c < 'a' ? 'A' : 'a';
        return "" + (char) ((c - base + key) % 26 + base);
    });
}

//@ 16
protected String encode(String plainText, int key) {
    if (plainText == null) {
        throw new IllegalArgumentException("no text to encode");
    }
    if (key < 0 || key > 25) {
        throw new IllegalArgumentException("key must be 0 to 25: " + key);
    }
    String cipherText = "";
    for (int i = 0; i < plainText.length(); i++) {
        char c = plainText.charAt(i);
        if (c < 'A' || c > 'Z') {
            cipherText = cipherText + c;
            continue;
        }
        c += key;
        cipherText = cipherText + (c > 'Z' ? (char) (c - 26) : c);
    }
    return cipherText;
}

//@ 17
static String withDigits(String s, int shift) {
    StringBuffer buffer = new StringBuffer();
    for (int i = 0; i < s.length(); i++) {
        char c = s.charAt(i);
        if (c >= '0' && c <= '9') {
            c = (char) ('0' + (c - '0' + shift) % 10);
        } else if (c >= 'a' && c <= 'z') {
            c = (char) ('a' + (c - 'a' + shift) % 26);
        } else if (c >= 'A' && c <= 'Z') {
            c = (char) ('A' + (c - 'A' + shift) % 26);
        }
        buffer.append(c);
    }
    return buffer.toString();
}

//@ 18
public char shiftLetter(char c, int key, boolean back) {
  int move = back ? 26 - key % 26 : key % 26;
  char base;
  if (c >= 'a' && c <= 'z') {
    base = 'a';
  } else if (c >= 'A' && c <= 'Z') {
    base = 'A';
  } else {
    return c;
  }
  return (char) (base + (c - base + move) % 26);
}

//@ 19
static String words(String sentence, int shift) {
    StringJoiner cipher = new StringJoiner(" ");
    for (String word : sentence.toLowerCase().split(" ")) {
        char[] letters = word.toCharArray();
        for (int i = 0; i < letters.length; i++) {
            int index = letters[i] - 'a';
            if (index >= 0 && index < 26) letters[i] = (char) ((index + shift) % 26 + 'a');
        }
        cipher.add(String.valueOf(letters));
    }
    return cipher.toString();
}

//@ 20
public static boolean isShifted(String plain, String cipher, int key) {
    if (plain.length() != cipher.length()) return false;
    for (int i = 0; i < plain.length(); i++) {
        char p = Character.toLowerCase(plain.charAt(i));
        char c = Character.toLowerCase(cipher.charAt(i));
        char expected = p >= 'a' && p <= 'z' ? (char) ((p - 'a' + key) % 26 + 'a') : p;
        if (c != expected) return false;
    }
    return true;
}

//@ 21
public static String caesar(String text, int key) {
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < text.length(); i++) {
        char c = text.charAt(i);
        if (c >= 'a' && c <= 'z') {
            out.append((char) ('a' + (c - 'a' + key) % 26));
        } else if (c >= 'A' && c <= 'Z') {
            out.append((char) ('A' + (c - 'A' + key) % 26));
        } else {
            out.append(c);
        }
    }
    return out.toString();
}

//@ 22
static String shiftLetters(String s, int n) {
    char[] letters = s.toCharArray();
    for (int i = 0; i < letters.length; i++) {
        if (Character.isLowerCase(letters[i])) {
            letters[i] = (char) ((letters[i] - 'a' + n) % 26 + 'a');
        } else if (Character.isUpperCase(letters[i])) {
            letters[i] = (char) ((letters[i] - 'A' + n) % 26 + 'A');
        }
    }
    return String.valueOf(letters);
}

//@ 23
String decode(String cipher, int key) {
    String plain = "";
    for (char c : cipher.toCharArray()) {
        if (c >= 'A' && c <= 'Z') {
            int moved = c - 'A' - key;
            if (moved < 0) moved += 26;
            plain += (char) ('A' + moved);
        } else {
            plain += c;
        }
    }
    return plain;
}

//@ 24
static char shiftOne(char c, int key) {
    if (!Character.isLetter(c)) {
        return c;
    }
    char first = Character.isUpperCase(c) ? 'A' : 'a';
    return (char) (first + (c - first + key + 26) % 26);
}

//@ 25
public String encryptUpper(String message, int offset) {
    StringBuffer result = new StringBuffer();
    for (char letter : message.toUpperCase().toCharArray()) {
        if (letter == ' ') {
            result.append(letter);
            continue;
        }
        int position = letter - 'A';
        int shifted = (position + offset) % 26;
        result.append((char) ('A' + shifted));
    }
    return result.toString();
}

//@ 26
static String rot13(String input) {
    StringBuilder sb = new StringBuilder();
    for (char c : input.toCharArray()) {
        if (c >= 'a' && c <= 'm') c += 13;
        else if (c >= 'A' && c <= 'M') c += 13;
        else if (c >= 'n' && c <= 'z') c -= 13;
        else if (c >= 'N' && c <= 'Z') c -= 13;
        sb.append(c);
    }
    return sb.toString();
}

//@ 27
public static String vigenere(String text, String key) {
    StringBuilder out = new StringBuilder();
    int used = 0;
    for (char c : text.toLowerCase().toCharArray()) {
        if (c < 'a' || c > 'z') {
            out.append(c);
            continue;
        }
        int shift = key.charAt(used++ % key.length()) - 'a';
        out.append((char) ('a' + (c - 'a' + shift) % 26));
    }
    return out.toString();
}

//@ 28
String rotateAlphabet(String text, int shift) {
    final String alphabet = "abcdefghijklmnopqrstuvwxyz";
    StringBuilder result = new StringBuilder();
    for (char c : text.toLowerCase().toCharArray()) {
        int index = alphabet.indexOf(c);
        result.append(index == -1 ? c : alphabet.charAt((index + shift) % 26));
    }
    return result.toString();
}

//@ 29
static String atbash(String text) {
    StringBuilder mirrored = new StringBuilder(text.length());
    for (char c : text.toCharArray()) {
        if (Character.isUpperCase(c)) mirrored.append((char) ('Z' - (c - 'A')));
        else if (Character.isLowerCase(c)) mirrored.append((char) ('z' - (c - 'a')));
        else mirrored.append(c);
    }
    return mirrored.toString();
}

//@ 30
public int guessKey(String cipher) {
    int[] counts = new int[26];
    for (char c : cipher.toLowerCase().toCharArray()) {
        if (c >= 'a' && c <= 'z') counts[c - 'a']++;
    }
    int top = 0;
    for (int i = 1; i < 26; i++) {
        if (counts[i] > counts[top]) top = i;
    }
    return (top - ('e' - 'a') + 26) % 26;
}

//@ 31
static String withDigits(String text, int key) {
    StringBuilder out = new StringBuilder();
    for (char c : text.toCharArray()) {
        if (Character.isDigit(c)) {
            out.append((char) ('0' + (c - '0' + key) % 10));
        } else if (Character.isLetter(c)) {
            char a = c <= 'Z' ? 'A' : 'a';
            out.append((char) (a + (c - a + key) % 26));
        } else {
            out.append(c);
        }
    }
    return out.toString();
}

//@ 32
static String streamed(String message, int key) {
    StringBuilder sb = new StringBuilder();
    message.chars().forEach(c -> {
        if (Character.isUpperCase(c)) sb.append((char) ('A' + Math.floorMod(c - 'A' + key, 26)));
        else if (Character.isLowerCase(c)) sb.append((char) ('a' + Math.floorMod(c - 'a' + key, 26)));
        else sb.append((char) c);
    });
    return sb.toString();
}
