// SPDX-License-Identifier: Apache-2.0
// Family: move everything from a source stream to a sink.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static void copy(InputStream in, OutputStream out) throws IOException {
    byte[] buffer = new byte[4096];
    int n;
    while ((n = in.read(buffer)) > 0) {
        out.write(buffer, 0, n);
    }
    out.flush();
}

//@ 02
long transfer(InputStream source, OutputStream sink) throws IOException {
    long total = 0;
    for (int b = source.read(); b != -1; b = source.read()) {
        sink.write(b);
        total++;
    }
    return total;
}

//@ 03
static String read(InputStream is) throws IOException
{
    ByteArrayOutputStream bos = new ByteArrayOutputStream();
    byte[] chunk = new byte[512];
    int len = is.read(chunk);
    while (len >= 0)
    {
        bos.write(chunk, 0, len);
        len = is.read(chunk);
    }
    is.close();
    return bos.toString("UTF-8");
}

//@ 04
public static int pump(Reader from, Writer to) throws IOException {
    char[] block = new char[1024];
    int count = 0;
    while (true) {
        int got = from.read(block, 0, block.length);
        if (got < 0) break;
        to.write(block, 0, got);
        count += got;
    }
    return count;
}

//@ 05
void run(BufferedReader reader, PrintWriter writer) {
    try {
        String line = reader.readLine();
        while (line != null) {
            writer.println(line);
            line = reader.readLine();
        }
    } catch (IOException e) {
        throw new UncheckedIOException("cannot copy", e);
    } finally {
        writer.flush();
    }
}

//@ 06
public byte[] slurp(InputStream stream, int expected) throws IOException {
    byte[] content = new byte[expected];
    int filled = 0;
    int step;
    while ((step = stream.read(content, filled, content.length - filled)) != -1) {
        filled += step;
        if (filled == content.length) {
            content = Arrays.copyOf(content, content.length * 2 + 1);
        }
    }
    return Arrays.copyOf(content, filled);
}

//@ 07
static void process(InputStream a, OutputStream b) throws IOException {
    try (BufferedInputStream bin = new BufferedInputStream(a);
         BufferedOutputStream bout = new BufferedOutputStream(b)) {
        bin.transferTo(bout);
    }
}

//@ 08
/** Stops after max bytes; tells whether the source was used up. */
static boolean copyAtMost(InputStream in, OutputStream out, long max) throws IOException {
    byte[] tmp = new byte[256];
    long left = max;
    while (left > 0) {
        int want = (int) Math.min(tmp.length, left);
        int r = in.read(tmp, 0, want);
        if (r == -1) return true;
        out.write(tmp, 0, r);
        left -= r;
    }
    return in.read() == -1;
}

//@ 09
private void closeBoth(InputStream input, OutputStream output) throws IOException {
    try {
        try {
            byte[] data = input.readAllBytes();
            output.write(data);
        } finally {
            output.close();
        }
    } finally {
        input.close();
    }
}

//@ 10
static String lines(Reader r) {
    StringBuilder sb = new StringBuilder();
    try (BufferedReader br = new BufferedReader(r)) {
        String s;
        while ((s = br.readLine()) != null) {
            sb.append(s);
            sb.append(System.lineSeparator());
        }
    } catch (IOException ignored) {
        return null;
    }
    return sb.toString();
}

//@ 11
public static long channels(InputStream in, OutputStream out) throws IOException {
    java.nio.channels.ReadableByteChannel rc = java.nio.channels.Channels.newChannel(in);
    java.nio.channels.WritableByteChannel wc = java.nio.channels.Channels.newChannel(out);
    java.nio.ByteBuffer bb = java.nio.ByteBuffer.allocate(8192);
    long moved = 0;
    while (rc.read(bb) >= 0) {
        bb.flip();
        while (bb.hasRemaining()) {
            moved += wc.write(bb);
        }
        bb.clear();
    }
    return moved;
}

//@ 12
static void f(InputStream i, OutputStream o) throws IOException {
    int c = i.read();
    if (c < 0) {
        o.flush();
        return;
    }
    o.write(c);
    f(i, o);
}

//@ 13
public void solve(DataInputStream dis, DataOutputStream dos) throws IOException {
    boolean eof = false;
    do {
        try {
            dos.writeByte(dis.readByte());
        } catch (EOFException end) {
            eof = true;
        }
    } while (!eof);
}

//@ 14
static String joinLines(BufferedReader in) {
    return in.lines()
        .collect(Collectors.joining("\n"));
}

//@ 15
/**
 * Copies and reports progress after each block.
 * @param listener gets the number of bytes so far
 */
public static void copyWithProgress(InputStream src, OutputStream dst, java.util.function.LongConsumer listener)
        throws IOException {
    final byte[] block = new byte[2048];
    long sofar = 0L;
    int size;
    while (-1 != (size = src.read(block))) {
        dst.write(block, 0, size);
        sofar += size;
        listener.accept(sofar);
    }
}

//@ 16
void concat(List<InputStream> parts, OutputStream whole) throws IOException {
    InputStream all = new SequenceInputStream(Collections.enumeration(parts));
    byte[] b = new byte[100];
    int k = 0;
    while (k != -1) {
        whole.write(b, 0, k);
        k = all.read(b);
    }
    all.close();
}

//@ 17
protected static int tee(InputStream from, OutputStream... targets) throws IOException {
    int bytes = 0;
    int next;
    while ((next = from.read()) >= 0) {
        bytes++;
        for (OutputStream t : targets) {
            t.write(next);
        }
    }
    for (OutputStream t : targets) t.flush();
    return bytes;
}

//@ 18
public char[] readFully(Reader input) throws IOException {
    if (input == null) throw new IllegalArgumentException("reader must not be null");
    CharArrayWriter caw = new CharArrayWriter();
    int ch;
    do {
        ch = input.read();
        if (ch != -1) caw.append((char) ch);
    } while (ch != -1);
    return caw.toCharArray();
}

//@ 19
static void copyNonBlankLines(Scanner sc, Appendable dest) throws IOException {
  while (sc.hasNextLine()) {
    String l = sc.nextLine();
    if (l.trim().length() > 0) {
      dest.append(l).append('\n');
    }
  }
}

//@ 20
boolean tryCopy(InputStream in, OutputStream out) {
    byte[] part;
    try {
        // readNBytes answers with an empty array at the end
        while ((part = in.readNBytes(64)).length != 0) {
            out.write(part);
        }
        return true;
    } catch (IOException e) {
        System.err.println("copy failed: " + e.getMessage());
        return false;
    }
}

//@ 21
public static void copyStream(InputStream input, OutputStream output) throws IOException {
    byte[] buffer = new byte[1024];
    int bytesRead = input.read(buffer);
    while (bytesRead != -1) {
        output.write(buffer, 0, bytesRead);
        bytesRead = input.read(buffer);
    }
}

//@ 22
static long copyLarge(InputStream input, OutputStream output, byte[] buffer) throws IOException {
    long count = 0;
    for (int n; (n = input.read(buffer)) != -1; ) {
        output.write(buffer, 0, n);
        count += n;
    }
    output.flush();
    return count;
}

//@ 23
void copyFile(File source, File target) throws IOException {
    try (FileInputStream in = new FileInputStream(source);
         FileOutputStream out = new FileOutputStream(target)) {
        byte[] buf = new byte[8192];
        int len;
        while ((len = in.read(buf)) > 0) {
            out.write(buf, 0, len);
        }
    }
}

//@ 24
public static byte[] toByteArray(InputStream in) throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    byte[] data = new byte[4096];
    int n;
    while ((n = in.read(data, 0, data.length)) != -1) {
        out.write(data, 0, n);
    }
    out.flush();
    return out.toByteArray();
}

//@ 25
static void backup(String from, String to) throws IOException {
    InputStream in = null;
    OutputStream out = null;
    try {
        in = new BufferedInputStream(new FileInputStream(from));
        out = new BufferedOutputStream(new FileOutputStream(to));
        int b;
        while ((b = in.read()) != -1) out.write(b);
    } finally {
        if (in != null) in.close();
        if (out != null) out.close();
    }
}

//@ 26
String readAll(Reader reader) throws IOException {
    StringWriter writer = new StringWriter();
    char[] buffer = new char[2048];
    int n = 0;
    while (-1 != (n = reader.read(buffer))) {
        writer.write(buffer, 0, n);
    }
    return writer.toString();
}

//@ 27
public static int copyChars(Reader in, Writer out, int size) throws IOException {
    if (size <= 0) throw new IllegalArgumentException("size must be positive");
    char[] chars = new char[size];
    int total = 0, read;
    do {
        read = in.read(chars);
        if (read > 0) {
            out.write(chars, 0, read);
            total += read;
        }
    } while (read >= 0);
    out.close();
    return total;
}

//@ 28
static void append(File log, Reader extra) throws IOException {
    BufferedReader reader = new BufferedReader(extra);
    PrintWriter out = new PrintWriter(new FileWriter(log, true));
    String line;
    while ((line = reader.readLine()) != null) {
        out.println(line);
    }
    out.close();
    reader.close();
}

//@ 29
public boolean save(InputStream body, File file) {
    try (OutputStream out = new FileOutputStream(file)) {
        body.transferTo(out);
        return true;
    } catch (IOException e) {
        e.printStackTrace();
        return false;
    }
}

//@ 30
static void skipThenCopy(InputStream in, OutputStream out, long offset) throws IOException {
    long skipped = in.skip(offset);
    if (skipped < offset) {
        throw new EOFException("stream ends after " + skipped + " bytes");
    }
    byte[] buffer = new byte[512];
    for (int n = in.read(buffer); n > 0; n = in.read(buffer)) {
        out.write(buffer, 0, n);
    }
}

//@ 31
protected List<String> drain(InputStream stream) throws IOException {
    List<String> lines = new ArrayList<>();
    BufferedReader reader = new BufferedReader(new InputStreamReader(stream, "UTF-8"));
    for (String line = reader.readLine(); line != null; line = reader.readLine()) {
        lines.add(line);
    }
    reader.close();
    return lines;
}

//@ 32
static Thread pumpInBackground(InputStream in, OutputStream out) {
    Thread worker = new Thread(() -> {
        byte[] buffer = new byte[1024];
        try {
            int n;
            while ((n = in.read(buffer)) != -1) {
                out.write(buffer, 0, n);
                out.flush();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    });
    worker.start();
    return worker;
}
