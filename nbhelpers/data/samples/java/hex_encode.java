// SPDX-License-Identifier: Apache-2.0
// Family: write bytes (or a number) in hexadecimal digits.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static String toHex(byte[] bytes) {
    StringBuilder sb = new StringBuilder();
    for (byte b : bytes) {
        sb.append(String.format("%02x", b));
    }
    return sb.toString();
}

//@ 02
static String encode(byte[] bytes) {
    final char[] digits = "0123456789abcdef".toCharArray();
    char[] hex = new char[bytes.length * 2];
    for (int i = 0; i < bytes.length; i++) {
        int v = bytes[i] & 0xFF;
        hex[2 * i] = digits[v >>> 4];
        hex[2 * i + 1] = digits[v & 0x0F];
    }
    return new String(hex);
}

//@ 03
private static StringBuffer nibbles(byte[] bytes)
{
    StringBuffer sb = new StringBuffer();
    boolean high = true;
    int index = 0;
    while (index < bytes.length)
    {
        int quarter = high ? bytes[index] >> 4 & 15 : bytes[index] & 15;
        if (quarter < 10)
            sb.append((char) ('0' + quarter));
        else
            sb.append((char) ('A' + quarter - 10));
        if (!high)
            index++;
        high = !high;
    }
    return sb;
}

//@ 04
String run(byte[] bytes) {
    String hex = new BigInteger(1, bytes).toString(16);
    while (hex.length() < bytes.length * 2) {
        hex = "0" + hex;
    }
    return hex;
}

//@ 05
public String showBytes(Byte... bytes) {
    String text = "0x";
    for (int i = 0; i < bytes.length; i++) {
        int positive = bytes[i] < 0 ? bytes[i] + 256 : bytes[i];
        if (positive < 16) {
            text += "0";
        }
        text += Long.toString(positive, 16);
    }
    return text;
}

//@ 06
static String viaStream(byte[] bytes) {
    return IntStream.range(0, bytes.length)
        .map(i -> bytes[i] & 255)
        .mapToObj(n -> (n < 16 ? "0" : "") + Integer.toHexString(n))
        .collect(Collectors.joining());
}

//@ 07
/** Upper case, pairs separated by a colon, as in fingerprints. */
public static String fingerprint(byte[] bytes) {
    StringJoiner pairs = new StringJoiner(":");
    for (int k = 0; k < bytes.length; k++) {
        String hex = Integer.toHexString(0x100 | (bytes[k] & 0xff)).substring(1);
        pairs.add(hex.toUpperCase());
    }
    return pairs.toString();
}

//@ 08
static String f(int number) {
    if (number == 0) return "0";
    String hex = "";
    while (number != 0) {
        int nibble = number & 15;
        hex = "0123456789ABCDEF".charAt(nibble) + hex;
        number >>>= 4;
    }
    return hex;
}

//@ 09
public static String process(long value) {
    char[] buffer = new char[16];
    for (int pos = 15; pos >= 0; pos--) {
        buffer[pos] = Character.forDigit((int) (value & 0xF), 16);
        value = value >> 4;
    }
    return String.valueOf(buffer);
}

//@ 10
static String recursive(int n) {
    String low = n % 16 < 10 ? "" + n % 16 : "" + (char) ('A' + n % 16 - 10);
    if (n < 16) {
        return low;
    }
    return recursive(n / 16) + low;
}

//@ 11
public String hexText(String message) throws UnsupportedEncodingException {
    Formatter formatter = new Formatter(Locale.ROOT);
    byte[] bytes = message.getBytes("UTF-8");
    for (byte b : bytes) {
        formatter.format("%02X ", b);
    }
    String text = formatter.toString().trim();
    formatter.close();
    return text;
}

//@ 12
static void writeHex(InputStream in, Appendable out) throws IOException {
    int octet;
    while ((octet = in.read()) >= 0) {
        out.append(Character.forDigit(octet >> 4, 16));
        out.append(Character.forDigit(octet & 0xf, 16));
    }
}

//@ 13
byte[] toAscii(byte[] bytes, int offset, int len) {
    if (offset < 0 || len < 0 || offset + len > bytes.length) {
        throw new IndexOutOfBoundsException();
    }
    byte[] dst = new byte[len << 1];
    int d = 0;
    for (int p = offset; p < offset + len; p++) {
        for (int shift = 4; shift >= 0; shift -= 4) {
            int nibble = (bytes[p] >> shift) & 0xf;
            dst[d++] = (byte) (nibble > 9 ? nibble + 87 : nibble + 48);
        }
    }
    return dst;
}

//@ 14
public static String solve(List<Byte> list) {
    String[] lookup = new String[256];
    for (int i = 0; i < 256; i++) {
        lookup[i] = (i < 0x10 ? "0" : "") + Integer.toString(i, 16);
    }
    StringBuilder hex = new StringBuilder();
    list.forEach(b -> hex.append(lookup[Byte.toUnsignedInt(b)]));
    return hex.toString();
}

//@ 15
static String withFormat(byte[] bytes, boolean upper) {
    HexFormat hf = HexFormat.of();
    if (upper) {
        hf = hf.withUpperCase();
    }
    return bytes == null ? null : hf.formatHex(bytes);
}

//@ 16
/**
 * One line of a dump: offset, bytes, printable characters.
 */
protected static String dumpLine(byte[] mem, int at) {
    StringBuilder left = new StringBuilder(String.format("%08x ", at));
    StringBuilder right = new StringBuilder();
    for (int i = at; i < Math.min(at + 16, mem.length); i++) {
        left.append(' ').append(Integer.toHexString((mem[i] & 0xf0) >> 4)).append(Integer.toHexString(mem[i] & 0xf));
        right.append(mem[i] >= 32 && mem[i] < 127 ? (char) mem[i] : '.');
    }
    return left + "  |" + right + "|";
}

//@ 17
public String colour(int red, int green, int blue) {
    int[] channels = {red, green, blue};
    String code = "#";
    for (int c : channels) {
        if (c < 0 || c > 255) throw new IllegalArgumentException("channel " + c);
        code += "0123456789abcdef".substring(c / 16, c / 16 + 1);
        code += "0123456789abcdef".substring(c % 16, c % 16 + 1);
    }
    return code;
}

//@ 18
static String escape(String s) {
  StringBuilder sb = new StringBuilder();
  for (char c : s.toCharArray()) {
    if (c < 128) {
      sb.append(c);
      continue;
    }
    String hex = Integer.toHexString(c);
    sb.append("\\u").append("0000", 0, 4 - hex.length()).append(hex);
  }
  return sb.toString();
}

//@ 19
public static CharSequence hexadecimal(final BigInteger big) {
    StringBuilder reversed = new StringBuilder();
    BigInteger rest = big;
    final BigInteger sixteen = BigInteger.valueOf(16);
    do {
        BigInteger[] parts = rest.divideAndRemainder(sixteen);
        int digit = parts[1].intValue();
        reversed.append((char) (digit + (digit < 10 ? '0' : 'a' - 10)));
        rest = parts[0];
    } while (rest.signum() > 0);
    return reversed.reverse();
}

//@ 20
String bits(byte[] bytes) {
    // goes through text in base two, four digits at a time
    StringBuilder base2 = new StringBuilder();
    for (byte b : bytes) {
        for (int bit = 7; bit >= 0; bit--) base2.append((b >> bit) & 1);
    }
    StringBuilder hex = new StringBuilder();
    for (int i = 0; i < base2.length(); i += 4) {
        hex.append(Integer.toHexString(Integer.parseInt(base2.substring(i, i + 4), 2)));
    }
    return hex.toString();
}

//@ 21
static String bytesToHex(byte[] data) {
    StringBuilder hex = new StringBuilder(data.length * 2);
    for (byte b : data) {
        String digits = Integer.toHexString(b & 0xff);
        if (digits.length() == 1) {
            hex.append('0');
        }
        hex.append(digits);
    }
    return hex.toString();
}

//@ 22
public static String hexUpper(byte[] data) {
    String digits = "0123456789ABCDEF";
    StringBuilder hex = new StringBuilder();
    for (byte b : data) {
        hex.append(digits.charAt((b & 0xF0) >> 4));
        hex.append(digits.charAt(b & 0x0F));
    }
    return hex.toString();
}

//@ 23
String hexSpaced(byte[] data) {
    StringBuilder hex = new StringBuilder();
    for (int i = 0; i < data.length; i++) {
        if (i > 0) hex.append(' ');
        hex.append(String.format("%02X", data[i]));
    }
    return hex.toString();
}

//@ 24
static void printHex(byte[] data, PrintStream out) {
    for (int i = 0; i < data.length; i++) {
        out.printf("%02x ", data[i] & 0xff);
        if (i % 16 == 15) {
            out.println();
        }
    }
    out.println();
}

//@ 25
public static char[] hexChars(byte[] data) {
    char[] table = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
    char[] out = new char[data.length << 1];
    for (int i = 0, j = 0; i < data.length; i++) {
        out[j++] = table[(0xF0 & data[i]) >>> 4];
        out[j++] = table[0x0F & data[i]];
    }
    return out;
}

//@ 26
static String digest(byte[] hash) {
    BigInteger number = new BigInteger(1, hash);
    StringBuilder hex = new StringBuilder(number.toString(16));
    while (hex.length() < 32) {
        hex.insert(0, '0');
    }
    return hex.toString();
}

//@ 27
String hexInt(int value) {
    char[] digits = "0123456789abcdef".toCharArray();
    char[] out = new char[8];
    for (int i = 7; i >= 0; i--) {
        out[i] = digits[value & 0xf];
        value >>>= 4;
    }
    return "0x" + new String(out);
}

//@ 28
public static String mac(byte[] address) {
    StringBuilder sb = new StringBuilder();
    for (int i = 0; i < address.length; i++) {
        sb.append(String.format("%02X%s", address[i], i < address.length - 1 ? "-" : ""));
    }
    return sb.toString();
}

//@ 29
static String hexOfText(String text) {
    StringBuilder hex = new StringBuilder();
    for (char c : text.toCharArray()) {
        hex.append(Integer.toHexString(c >> 4 & 0xf));
        hex.append(Integer.toHexString(c & 0xf));
    }
    return hex.toString();
}

//@ 30
static String part(byte[] data, int from, int to) {
    StringBuilder hex = new StringBuilder();
    for (int i = from; i < to; i++) {
        int high = data[i] >> 4 & 0xf;
        int low = data[i] & 0xf;
        hex.append((char) (high < 10 ? '0' + high : 'a' + high - 10));
        hex.append((char) (low < 10 ? '0' + low : 'a' + low - 10));
    }
    return hex.toString();
}

//@ 31
public List<String> hexList(byte[] data) {
    List<String> hex = new ArrayList<>();
    for (byte b : data) {
        hex.add("0x" + Integer.toHexString((b & 0xff) | 0x100).substring(1));
    }
    return hex;
}

//@ 32
String hexLong(long value, int width) {
    String hex = Long.toHexString(value).toUpperCase();
    StringBuilder padded = new StringBuilder();
    for (int i = hex.length(); i < width; i++) {
        padded.append('0');
    }
    return padded.append(hex).toString();
}
