// SPDX-License-Identifier: Apache-2.0
// Family: the product of two matrices.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static int[][] multiply(int[][] a, int[][] b) {
    int[][] c = new int[a.length][b[0].length];
    for (int i = 0; i < a.length; i++) {
        for (int j = 0; j < b[0].length; j++) {
            for (int k = 0; k < b.length; k++) {
                c[i][j] += a[i][k] * b[k][j];
            }
        }
    }
    return c;
}

//@ 02
static double[][] product(double[][] left, double[][] right) {
    int rows = left.length, inner = right.length, cols = right[0].length;
    if (left[0].length != inner) {
        throw new IllegalArgumentException("cannot multiply " + left[0].length + " columns by " + inner + " rows");
    }
    double[][] result = new double[rows][cols];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            double sum = 0.0;
            for (int i = 0; i < inner; i++) sum += left[r][i] * right[i][c];
            result[r][c] = sum;
        }
    return result;
}

//@ 03
double[][] run(double[][] m, double[][] n) {
    return Arrays.stream(m)
        .map(row -> IntStream.range(0, n[0].length)
            .mapToDouble(j -> IntStream.range(0, n.length).mapToDouble(k -> row[k] * n[k][j]).sum())
            .toArray())
        .toArray(double[][]::new);
}

//@ 04
/** Square matrices stored row by row in one array. */
static void flat(float[] a, float[] b, float[] out, int n) {
    Arrays.fill(out, 0f);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) {
            float x = a[i * n + k];
            for (int j = 0; j < n; j++) {
                out[i * n + j] += x * b[k * n + j];
            }
        }
    }
}

//@ 05
public List<List<Integer>> times(List<List<Integer>> x, List<List<Integer>> y)
{
    List<List<Integer>> z = new ArrayList<>();
    for (List<Integer> row : x)
    {
        List<Integer> line = new ArrayList<>();
        for (int col = 0; col < y.get(0).size(); col++)
        {
            int acc = 0;
            for (int k = 0; k < row.size(); k++)
                acc += row.get(k) * y.get(k).get(col);
            line.add(acc);
        }
        z.add(line);
    }
    return z;
}

//@ 06
static long[][] modMul(long[][] p, long[][] q, long mod) {
    int n = p.length;
    long[][] r = new long[n][n];
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            long s = 0;
            for (int k = 0; k < n; k++) {
                s = (s + p[i][k] % mod * (q[k][j] % mod)) % mod;
            }
            r[i][j] = s;
        }
    }
    return r;
}

//@ 07
public static double[][] viaTranspose(double[][] a, double[][] b) {
    double[][] bt = new double[b[0].length][b.length];
    for (int i = 0; i < b.length; i++)
        for (int j = 0; j < b[i].length; j++)
            bt[j][i] = b[i][j];
    double[][] c = new double[a.length][bt.length];
    for (int i = 0; i < a.length; i++) {
        for (int j = 0; j < bt.length; j++) {
            double[] u = a[i], v = bt[j];
            for (int k = 0; k < u.length; k++) c[i][j] += u[k] * v[k];
        }
    }
    return c;
}

//@ 08
private int[][] process(int[][] first, int[][] second) {
    int[][] answer = new int[first.length][];
    int r = 0;
    while (r < first.length) {
        answer[r] = new int[second[0].length];
        int c = 0;
        while (c < answer[r].length) {
            int k = first[r].length - 1;
            while (k >= 0) {
                answer[r][c] += first[r][k] * second[k][c];
                k--;
            }
            c++;
        }
        r++;
    }
    return answer;
}

//@ 09
static BigInteger[][] bigProduct(BigInteger[][] a, BigInteger[][] b) {
    BigInteger[][] out = new BigInteger[a.length][b[0].length];
    for (BigInteger[] row : out) Arrays.fill(row, BigInteger.ZERO);
    for (int i = 0; i < a.length; i++)
        for (int k = 0; k < b.length; k++)
            for (int j = 0; j < b[k].length; j++)
                out[i][j] = out[i][j].add(a[i][k].multiply(b[k][j]));
    return out;
}

//@ 10
/**
 * Sparse form: the key is "row,column", a missing cell is zero.
 */
static Map<String, Integer> sparse(Map<String, Integer> a, Map<String, Integer> b) {
    Map<String, Integer> c = new HashMap<>();
    for (Map.Entry<String, Integer> e : a.entrySet()) {
        String[] ik = e.getKey().split(",");
        for (Map.Entry<String, Integer> f : b.entrySet()) {
            String[] kj = f.getKey().split(",");
            if (ik[1].equals(kj[0])) {
                c.merge(ik[0] + "," + kj[1], e.getValue() * f.getValue(), Integer::sum);
            }
        }
    }
    return c;
}

//@ 11
public static int[][] blocked(int[][] a, int[][] b, int block) {
    int n = a.length;
    int[][] c = new int[n][n];
    for (int ii = 0; ii < n; ii += block)
        for (int kk = 0; kk < n; kk += block)
            for (int i = ii; i < Math.min(ii + block, n); i++)
                for (int k = kk; k < Math.min(kk + block, n); k++)
                    for (int j = 0; j < n; j++)
                        c[i][j] += a[i][k] * b[k][j];
    return c;
}

//@ 12
static void f(int[][] a, int[][] b, int[][] c, int i, int j, int k) {
    if (i == a.length) return;
    if (j == b[0].length) {
        f(a, b, c, i + 1, 0, 0);
    } else if (k == b.length) {
        f(a, b, c, i, j + 1, 0);
    } else {
        c[i][j] += a[i][k] * b[k][j];
        f(a, b, c, i, j, k + 1);
    }
}

//@ 13
int[][] parallel(final int[][] lhs, final int[][] rhs) {
    final int width = rhs[0].length;
    final int[][] res = new int[lhs.length][width];
    IntStream.range(0, lhs.length).parallel().forEach(y -> {
        for (int x = 0; x < width; x++) {
            int dot = 0;
            for (int t = 0; t < rhs.length; t++) dot += lhs[y][t] * rhs[t][x];
            res[y][x] = dot;
        }
    });
    return res;
}

//@ 14
public static long[] square2(long[] m, long[] n) {
    // both are {a, b, c, d} for the rows (a b) and (c d)
    long topLeft = m[0] * n[0] + m[1] * n[2];
    long topRight = m[0] * n[1] + m[1] * n[3];
    long bottomLeft = m[2] * n[0] + m[3] * n[2];
    long bottomRight = m[2] * n[1] + m[3] * n[3];
    return new long[] {topLeft, topRight, bottomLeft, bottomRight};
}

//@ 15
static Integer[][] solve(Integer[][] A, Integer[][] B) {
    if (A == null || B == null || A[0].length != B.length) return null;
    Integer[][] C = new Integer[A.length][B[0].length];
    int cell = 0;
    while (cell < A.length * B[0].length) {
        int row = cell / B[0].length;
        int col = cell % B[0].length;
        C[row][col] = 0;
        for (int k = 0; k < B.length; k++) C[row][col] += A[row][k] * B[k][col];
        cell++;
    }
    return C;
}

//@ 16
protected double[][] power(double[][] base, int exponent) {
    int n = base.length;
    double[][] acc = new double[n][n];
    for (int d = 0; d < n; d++) acc[d][d] = 1;
    for (int e = 0; e < exponent; e++) {
        double[][] next = new double[n][n];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                for (int k = 0; k < n; k++)
                    next[i][j] += acc[i][k] * base[k][j];
        acc = next;
    }
    return acc;
}

//@ 17
static double[][] outerSum(double[][] a, double[][] b) {
  // the product as a sum of columns times rows
  double[][] total = new double[a.length][b[0].length];
  for (int k = 0; k < b.length; k++) {
    for (int i = 0; i < total.length; i++) {
      if (a[i][k] == 0) continue;
      for (int j = 0; j < total[i].length; j++) {
        total[i][j] = total[i][j] + a[i][k] * b[k][j];
      }
    }
  }
  return total;
}

//@ 18
public Vector<Vector<Double>> mul(Vector<Vector<Double>> v, Vector<Vector<Double>> w) {
    Vector<Vector<Double>> prod = new Vector<Vector<Double>>();
    for (int i = 0; i < v.size(); i++) {
        prod.add(new Vector<Double>());
        for (int j = 0; j < w.firstElement().size(); j++) {
            double entry = 0;
            Iterator<Double> it = v.get(i).iterator();
            for (int k = 0; it.hasNext(); k++) {
                entry += it.next() * w.elementAt(k).elementAt(j);
            }
            prod.lastElement().add(Double.valueOf(entry));
        }
    }
    return prod;
}

//@ 19
static boolean[][] reach(boolean[][] g, boolean[][] h) {
    int size = g.length;
    boolean[][] both = new boolean[size][size];
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++)
            for (int via = 0; via < size && !both[from][to]; via++)
                both[from][to] = g[from][via] && h[via][to];
    return both;
}

//@ 20
public static int[][] chain(int[][]... factors) {
    int[][] current = factors[0];
    for (int f = 1; f < factors.length; f++) {
        int[][] by = factors[f];
        int[][] grown = new int[current.length][by[0].length];
        for (int i = 0; i < grown.length; i++)
            for (int j = 0; j < grown[0].length; j++)
                for (int k = 0; k < by.length; k++)
                    grown[i][j] += current[i][k] * by[k][j];
        current = grown;
    }
    return current;
}

//@ 21
static void multiplyAndPrint(Scanner in, int n) {
    double[][] a = new double[n][n], b = new double[n][n];
    for (int i = 0; i < n * n; i++) a[i / n][i % n] = in.nextDouble();
    for (int i = 0; i < n * n; i++) b[i / n][i % n] = in.nextDouble();
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double cell = 0;
            for (int k = 0; k < n; k++) cell += a[i][k] * b[k][j];
            System.out.printf("%8.3f ", cell);
        }
        System.out.println();
    }
}

//@ 22
static double[][] product(double[][] left, double[][] right) {
    int n = left.length;
    int m = right[0].length;
    int inner = right.length;
    double[][] result = new double[n][m];
    for (int row = 0; row < n; row++) {
        for (int col = 0; col < m; col++) {
            double sum = 0;
            for (int i = 0; i < inner; i++) {
                sum += left[row][i] * right[i][col];
            }
            result[row][col] = sum;
        }
    }
    return result;
}

//@ 23
double[] timesVector(double[][] matrix, double[] vector) {
    double[] result = new double[matrix.length];
    for (int i = 0; i < matrix.length; i++) {
        for (int j = 0; j < vector.length; j++) {
            result[i] += matrix[i][j] * vector[j];
        }
    }
    return result;
}

//@ 24
static long[][] power(long[][] base, int exponent) {
    int n = base.length;
    long[][] result = new long[n][n];
    for (int i = 0; i < n; i++) result[i][i] = 1;
    for (int e = 0; e < exponent; e++) {
        long[][] next = new long[n][n];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                for (int k = 0; k < n; k++)
                    next[i][j] += result[i][k] * base[k][j];
        result = next;
    }
    return result;
}

//@ 25
public static double[][] square(double[][] m) {
    int n = m.length;
    double[][] out = new double[n][n];
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double cell = 0.0;
            for (int k = 0; k < n; k++) cell += m[i][k] * m[k][j];
            out[i][j] = cell;
        }
    }
    return out;
}

//@ 26
int[][] checked(int[][] a, int[][] b) {
    if (a[0].length != b.length) {
        throw new IllegalArgumentException("columns of a must equal rows of b");
    }
    int[][] c = new int[a.length][b[0].length];
    for (int i = 0; i < c.length; i++) {
        for (int j = 0; j < c[i].length; j++) {
            int dot = 0;
            for (int k = 0; k < b.length; k++) {
                dot += a[i][k] * b[k][j];
            }
            c[i][j] = dot;
        }
    }
    return c;
}

//@ 27
static void multiplyInto(float[][] a, float[][] b, float[][] c) {
    for (int i = 0; i < a.length; i++) {
        for (int k = 0; k < b.length; k++) {
            float factor = a[i][k];
            for (int j = 0; j < b[k].length; j++) {
                c[i][j] += factor * b[k][j];
            }
        }
    }
}

//@ 28
static double[] flat(double[] a, double[] b, int n) {
    double[] c = new double[n * n];
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) {
                sum += a[i * n + k] * b[k * n + j];
            }
            c[i * n + j] = sum;
        }
    }
    return c;
}

//@ 29
public static int[][] modulo(int[][] a, int[][] b, int mod) {
    int[][] c = new int[a.length][b[0].length];
    for (int i = 0; i < a.length; i++) {
        for (int j = 0; j < b[0].length; j++) {
            long sum = 0;
            for (int k = 0; k < b.length; k++) {
                sum = (sum + (long) a[i][k] * b[k][j]) % mod;
            }
            c[i][j] = (int) sum;
        }
    }
    return c;
}

//@ 30
static double[][] diagonalTimes(double[] diagonal, double[][] b) {
    double[][] c = new double[diagonal.length][];
    for (int i = 0; i < diagonal.length; i++) {
        c[i] = b[i].clone();
        for (int j = 0; j < c[i].length; j++) {
            c[i][j] *= diagonal[i];
        }
    }
    return c;
}

//@ 31
public List<double[]> rowsTimes(List<double[]> rows, double[][] b) {
    List<double[]> products = new ArrayList<>();
    for (double[] row : rows) {
        double[] out = new double[b[0].length];
        for (int k = 0; k < row.length; k++)
            for (int j = 0; j < out.length; j++)
                out[j] += row[k] * b[k][j];
        products.add(out);
    }
    return products;
}

//@ 32
double[][] transposedFirst(double[][] a, double[][] b) {
    double[][] columns = new double[b[0].length][b.length];
    for (int i = 0; i < b.length; i++)
        for (int j = 0; j < b[0].length; j++)
            columns[j][i] = b[i][j];
    double[][] c = new double[a.length][columns.length];
    for (int i = 0; i < a.length; i++)
        for (int j = 0; j < columns.length; j++)
            for (int k = 0; k < b.length; k++)
                c[i][j] += a[i][k] * columns[j][k];
    return c;
}
