"""Mixed test text, made from nothing but this file.

Owns: the sentences in many scripts and the generators that turn them, with a seed, into documents that are hard for a
tokenizer. Used by make_tokenizers.py for the training text and for the test corpus. Everything here was written for
this project; no text is read from the machine, so the same seed gives the same documents everywhere.

Code points are taken only from blocks that have not changed since Unicode 14 (or that can never be assigned), because
regex and normalisation libraries of different ages disagree about newer ones.
"""
import random
import unicodedata

SENTENCES = {
    "english": "The drafter guesses a whole block of words, and the larger model checks them in one pass. We don't know "
               "yet whether it's faster; they'll measure it tomorrow, I'd say. She's read 14 pages, you've read 120.",
    "french": "Le modèle écrit une phrase, puis l'autre la relit. À Noël, où étiez-vous ? Ça coûte très cher, peut-être "
              "même trop ; nous préférons l'œuvre naïve du garçon français.",
    "german": "Der größere Rechner prüft jeden Vorschlag. Können wir übermorgen früh darüber sprechen? Straßenbahnen "
              "fahren täglich, außer sonntags; Äpfel und Öl gibt es überall.",
    "vietnamese": "Chúng tôi kiểm tra từng từ một cách cẩn thận. Buổi sáng trời đẹp, nhưng chiều nay có mưa lớn ở miền "
                  "Trung. Bạn đã đọc quyển sách ấy chưa?",
    "turkish": "Küçük model önce tahmin eder, büyük model sonra doğrular. İstanbul'da ışıklar söndü, çocuklar şarkı "
               "söylüyor. Öğrenciler yarın gelecek mi?",
    "polish": "Mały model zgaduje, a duży sprawdza. Zażółć gęślą jaźń, mówi nauczyciel. Dzieci poszły wczoraj do lasu "
              "nad rzeką i wróciły późno.",
    "russian": "Маленькая модель предлагает слова, большая проверяет их за один проход. Завтра мы измерим скорость. "
               "Ёжик нашёл в лесу съедобный гриб, объел его и ушёл.",
    "ukrainian": "Їхній комп'ютер працює швидше, ніж наш. Ґанок біля хати пофарбували в жовтий колір. Чи є ще питання?",
    "greek": "Το μικρό μοντέλο μαντεύει και το μεγάλο ελέγχει. Πόσο γρήγορα τρέχει; Η θάλασσα ήταν ήρεμη το πρωί, αλλά "
             "το βράδυ φυσούσε δυνατός άνεμος.",
    "arabic": "النموذج الصغير يقترح الكلمات والنموذج الكبير يتحقق منها. كم كتابًا قرأت هذا العام؟ ذهب الأولاد إلى "
              "المدرسة، ثم عادوا إلى البيت مساءً.",
    "persian": "مدل کوچک حدس می‌زند و مدل بزرگ بررسی می‌کند. امروز هوا خوب است. کتاب‌ها روی میز هستند.",
    "hebrew": "המודל הקטן מנחש והמודל הגדול בודק. מתי נפגש מחר בבוקר? הַיְלָדִים הָלְכוּ לַגַּן, וְאָז חָזְרוּ הַבַּיְתָה.",
    "hindi": "छोटा मॉडल अनुमान लगाता है और बड़ा मॉडल जाँचता है। क्या तुमने वह किताब पढ़ी? कल सुबह बाज़ार में बहुत भीड़ थी।",
    "bengali": "ছোট মডেল অনুমান করে আর বড় মডেল যাচাই করে। তুমি কি বইটা পড়েছ? আজ সকালে খুব বৃষ্টি হয়েছিল।",
    "tamil": "சிறிய மாதிரி ஊகிக்கிறது, பெரிய மாதிரி சரிபார்க்கிறது. நீங்கள் அந்தப் புத்தகத்தைப் படித்தீர்களா? நேற்று மழை பெய்தது.",
    "thai": "แบบจำลองเล็กเดาคำทั้งกลุ่ม แล้วแบบจำลองใหญ่ตรวจสอบ พรุ่งนี้เช้าเราจะไปตลาด คุณอ่านหนังสือเล่มนั้นหรือยัง",
    "khmer": "ម៉ូដែលតូចទាយពាក្យ ហើយម៉ូដែលធំពិនិត្យមើល។ ថ្ងៃស្អែកយើងនឹងទៅផ្សារ។",
    "burmese": "မော်ဒယ်အငယ်က ခန့်မှန်းပြီး မော်ဒယ်အကြီးက စစ်ဆေးသည်။ မနက်ဖြန် ဈေးသွားမယ်။",
    "chinese": "小模型先猜一整段词语，大模型再一次检查完。你昨天读了多少页书？今天天气很好，我们下午去公园散步吧！",
    "japanese": "小さなモデルが単語をまとめて推測し、大きなモデルが一度に確認します。昨日は何ページ読みましたか？カタカナとひらがなも使う。",
    "korean": "작은 모델이 단어를 추측하고 큰 모델이 한 번에 확인한다. 어제 책을 몇 쪽이나 읽었습니까? 오늘은 날씨가 좋네요!",
    "georgian": "პატარა მოდელი ვარაუდობს, დიდი კი ამოწმებს. ხვალ დილით ბაზარში წავალთ. წიგნი წაიკითხე?",
    "armenian": "Փոքր մոդելը գուշակում է, իսկ մեծը՝ ստուգում։ Վաղը առավոտյան շուկա կգնանք։ Գիրքը կարդացե՞լ ես։",
    "amharic": "ትንሹ ሞዴል ይገምታል፤ ትልቁ ደግሞ ያረጋግጣል። ነገ ጠዋት ወደ ገበያ እንሄዳለን። መጽሐፉን አንብበሃል?",
}

CODE = [
    "for (int {a} = 0; {a} < n_{b}; {a}++) {{\n    {c}[{a}] += {d} * {a};\n}}\n",
    "static inline uint32_t {a}_{b}(const char *{c}, size_t n)\n{{\n\tif (!{c} || n > 0x{h}u)\n\t\treturn -1;\n\treturn {d};\n}}\n",
    "def {a}_{b}(self, {c}: int = {n}) -> dict[str, float]:\n    \"\"\"Return the {d} of {c}.\"\"\"\n    return {{k: v / {n} for k, v in self.{d}.items()}}\n\n",
    "#include <{a}.h>\n#define {A}_MAX ({n}UL << 3)\nstruct {b} {{ float *{c}; int64_t {d}; }};\n",
    "const {a}{B} = async ({c}) => {{\n  const r = await fetch(`/api/v1/{b}/${{{c}.id}}?q={n}`);\n  return r.json();\n}};\n",
    "SELECT {a}.{b}, COUNT(*) FROM {c} WHERE {d} >= {n} AND {a}_id != 'x''{b}' GROUP BY 1;\r\n",
    "<div class=\"{a}-{b}\" id='{c}'>&nbsp;{n}&lt;{d}&gt;</div>\n",
    "impl<T: {A}> {B}<T> {{\n    pub fn {c}(&mut self) -> Result<(), {A}Error> {{ Ok(self.{d}? + {n}i64) }}\n}}\n",
    "{{\"{a}\": [{n}, -{n}.5e-3, null, true], \"{b}\": {{\"{c}\": \"\\u00e9\\n\"}}}}\n",
    "$ git log --oneline -n {n} | grep -v '{a}' > /tmp/{b}.txt  # {c}\n",
]
WORDS = ("token block draft verify cache page layer weight head norm index state count value buffer stream group "
         "length width step plan batch node edge graph queue worker reader writer config model name path file").split()
CAMEL = ["iPhoneXR", "HTTPServer", "getElementById", "XMLHttpRequest", "McDonald's", "ΑβΓδ", "ПриветМир", "ǅungla", "ǈubav",
         "ａｂｃＤＥＦ", "O'Neill's", "ÉCOLE", "straßeSTRASSE", "aʰbˡC", "ﬁnance", "x²y₃", "CAN'T", "we'LL", "I'M", "THEY'VE"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'x", "’s",
                "'\u017f", "'l", "'r", "'v", "''s", "'ſs", "'ſ "]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇩🇪", "🇯🇵🇫🇷", "1️⃣", "👨🏿‍🚀", "🧑‍🤝‍🧑", "☕", "✈️", "🤷‍♀️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "♟️", "©️", "🫠"]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u2029", "\x0b",
          "\x0c", "\x85", "\u1680", "\u202f", "\u205f", "\u180e", "\ufeff", "\x1c", "\x1d", "\x1e", "\x1f", "        "]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|begin_of_text|>",
            "<|eot_id|>", "<|start_header_id|>", "<|reserved_0|>", "<lstrip>", "<rstrip>", "<both>", "word", "solo", "<việt>",
            "<raw-ệ>", "<|im|>", "<|im_star", "<|>", "<norm>", "｜DSML｜", "<mid dle>"]
# (first, last) of blocks that are stable since Unicode 14
BLOCKS = [(0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x36f), (0x370, 0x52f), (0x531, 0x5f4), (0x600, 0x6ff), (0x700, 0x7ff),
          (0x900, 0x9fe), (0xa01, 0xaef), (0xb01, 0xbfa), (0xd02, 0xdf4), (0xe01, 0xfda), (0x1000, 0x11ff), (0x1200, 0x13fd),
          (0x1400, 0x17f9), (0x1d00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x20bf), (0x2100, 0x2426), (0x2460, 0x2bff),
          (0x2c00, 0x2dff), (0x2e80, 0x2fd5), (0x3000, 0x30ff), (0x3105, 0x33ff), (0x3400, 0x4dbf), (0x4e00, 0x9fff),
          (0xa000, 0xa6f7), (0xaa00, 0xab2e), (0xac00, 0xd7a3), (0xd7b0, 0xd7fb), (0xe000, 0xf8ff), (0xf900, 0xfb06),
          (0xfb1d, 0xfdc7), (0xfdf0, 0xfe6b), (0xfe70, 0xfffd), (0x10000, 0x100fa), (0x10280, 0x103d5), (0x10400, 0x104fb),
          (0x12000, 0x12399), (0x1d100, 0x1d1e8), (0x1d400, 0x1d7ff), (0x1f000, 0x1f6d2), (0x1f900, 0x1f9ff),
          (0x20000, 0x2a6d6), (0x2f800, 0x2fa1d), (0xe0001, 0xe007f), (0xe0100, 0xe01ef), (0x100000, 0x10fffd)]
# reserved holes that no plan fills, noncharacters, and empty planes
UNASSIGNED = [0x378, 0x379, 0x380, 0x38b, 0x557, 0x9b1, 0xfdd0, 0xfdef, 0xfffe, 0xffff, 0x1fffe, 0x1ffff, 0x2fffe, 0x40000,
              0x50123, 0x7ffff, 0x9abcd, 0xb1234, 0xc0000, 0xdffff, 0x10ffff]
NFC_HARD = ["\u212b", "\u2126", "\u0958\u095d", "\u1100\u1161\u11a8", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\uac00\u11a8", "e\u0301",
            "a\u0323\u0302", "a\u0302\u0323", "\u1e63\u0307", "s\u0323\u0307", "q\u0307\u0323", "o\u0308\u0304", "\u0344", "\u0340a",
            "\u09c7\u09be", "\u0dd9\u0dcf", "\u3046\u3099", "\u30cf\u309a", "\ufb2a", "\u2adc", "\U0001d15e", "\U0002f81a", "\ufa10", "\u0f73",
            "\u0061\u0315\u0300\u05ae\u0062", "A\u030a\u0301", "\u1fef", "\u037e", "i\u0307", "\u1b06", "\U000110ab"]


def is_stable(cp):
    return unicodedata.category(chr(cp)) not in ("Cs", "Cn")


def pseudo_word(rng, script_words):
    """a new word of pieces of known words, so that vocabularies do not simply memorise the sentences"""
    a, b = rng.choice(script_words), rng.choice(script_words)
    return a[:rng.randint(1, len(a))] + b[rng.randint(0, len(b) - 1):]


def prose(rng, lang=None):
    lang = lang or rng.choice(list(SENTENCES))
    words = SENTENCES[lang].split(" ")
    out = []
    for _ in range(rng.randint(5, 60)):
        r = rng.random()
        if r < 0.25:
            i = rng.randrange(len(words))
            out.extend(words[i:i + rng.randint(1, 8)])
        elif r < 0.75:
            out.append(rng.choice(words))
        elif r < 0.95:
            out.append(pseudo_word(rng, words))
        else:
            out.append(str(rng.randint(0, 10 ** rng.randint(1, 7))) + rng.choice(["", "%", ".", ",5", " km"]))
    return " ".join(out) + rng.choice(["", ".", "\n", "!?", "...\n\n"])


def code(rng):
    out = []
    for _ in range(rng.randint(1, 6)):
        w = [rng.choice(WORDS) for _ in range(6)]
        pad = rng.choice(["", "", "    ", "\t", "        "])
        text = rng.choice(CODE).format(a=w[0], b=w[1], c=w[2], d=w[3], A=w[4].upper(), B=w[5].title(), n=rng.randint(0, 5000),
                                       h="%x" % rng.getrandbits(32))
        out.append("".join(pad + line for line in text.splitlines(True)))
    return "".join(out)


def digits(rng):
    alphabets = ["0123456789"] * 4 + ["٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "ⅠⅡⅢⅣⅫ", "²³¹⁴½¾", "一二三四五"]
    return rng.choice([" ", "", ", ", "."]).join(
        "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.choice([1, 2, 3, 4, 5, 7, 12, 40, 300])))
        for _ in range(rng.randint(1, 8)))


def spaces(rng):
    out = []
    for _ in range(rng.randint(3, 30)):
        out.append(rng.choice(WORDS + ["{", "}", "!", "//", "7", "é"]) if rng.random() < 0.6 else "")
        s = rng.choice(SPACES)
        out.append(s * rng.choice([1, 1, 1, 2, 3, 17]) if rng.random() < 0.7 else s + rng.choice(SPACES))
    if rng.random() < 0.1:
        out.append(" " * rng.randint(100, 2000))
    return "".join(out)


def specials(rng):
    out = []
    for _ in range(rng.randint(2, 20)):
        r = rng.random()
        if r < 0.55:
            t = rng.choice(SPECIALS)
            if rng.random() < 0.1:
                t = unicodedata.normalize("NFD", t)
            if rng.random() < 0.07:
                t = t[:rng.randint(1, len(t))]
            out.append(t)
        elif r < 0.8:
            out.append(rng.choice(WORDS + ["user", "s", "_", "é", "1"]))
        out.append(rng.choice(["", "", " ", "  ", "\n", "\t ", "."]))
    return "".join(out)


def combining(rng):
    out = []
    for _ in range(rng.randint(5, 40)):
        r = rng.random()
        if r < 0.3:
            out.append(rng.choice(NFC_HARD))
        elif r < 0.6:
            marks = [chr(rng.choice([rng.randint(0x300, 0x34e), rng.randint(0x350, 0x36f), 0x5b0, 0x64b, 0x93c]))
                     for _ in range(rng.choice([1, 1, 2, 3, 5]))]
            out.append(rng.choice("aeiouAEIOUncszqᾳωяи가क") + "".join(marks))
        else:
            word = rng.choice(SENTENCES[rng.choice(["french", "vietnamese", "korean", "hindi", "greek", "hebrew"])].split(" "))
            out.append(unicodedata.normalize(rng.choice(["NFD", "NFD", "NFKD", "NFC"]), word))
        out.append(rng.choice(["", "", " "]))
    if rng.random() < 0.05:
        out.append("a" + "\u0301\u0323" * rng.randint(20, 100))
    return "".join(out)


def random_points(rng):
    out = []
    for _ in range(rng.randint(5, 80)):
        r = rng.random()
        if r < 0.15:
            out.append(chr(rng.choice(UNASSIGNED)))
        elif r < 0.25:
            out.append(chr(rng.randint(0, 0x9f)))
        else:
            lo, hi = rng.choice(BLOCKS)
            cp = rng.randint(lo, hi)
            out.append(chr(cp) if is_stable(cp) else "?")
    return "".join(out)


def controls(rng):
    return "".join(chr(rng.choice([rng.randint(0, 31), rng.randint(127, 159), rng.randint(97, 122), 0x20, 0xad, 0x200e, 0x202e]))
                   for _ in range(rng.randint(3, 60)))


def emoji(rng):
    return "".join(rng.choice(EMOJI) + rng.choice(["", "", " ", "!", "ok", "\u200d"]) for _ in range(rng.randint(1, 20)))


def contractions(rng):
    return "".join(rng.choice(WORDS + CAMEL + ["", "I", "É", "字"]) + rng.choice(CONTRACTIONS) + rng.choice(["", " ", "\n"])
                   for _ in range(rng.randint(2, 30)))


def camel(rng):
    out = []
    for _ in range(rng.randint(3, 30)):
        w = rng.choice(CAMEL + WORDS)
        out.append(rng.choice([w, w.upper(), w.title(), w.swapcase(), w + rng.choice(WORDS).title()]))
        out.append(rng.choice(["", " ", "_", "-", "/", "://", ".\n", "/\r\n", "'s "]))
    return "".join(out)


def long_run(rng):
    unit = rng.choice(["a", "ab", "the", "=", "-=", "字", "а", "\n", "0", "é", "e\u0301", "ฟ", "!?", "x_", " a"])
    return unit * rng.randint(50, 1500) if rng.random() < 0.7 else "".join(
        rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(300, 3000)))


def mixed(rng):
    kinds = [prose, code, digits, spaces, emoji, combining, controls, specials, camel]
    return "".join(rng.choice(kinds)(rng)[:rng.randint(1, 80)] for _ in range(rng.randint(2, 12)))


BAD = [b"\xff", b"\xfe", b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe2\x82", b"\xe2", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf0",
       b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80",
       b"\xe2\x28\xa1", b"\xc3\x28", b"\xf0\x28\x8c\xbc", b"\x00", b"\xef\xbf\xbd", b"\xed\xa0\xbd\xed\xb8\x80"]


def broken(rng):
    """bytes that are not UTF-8: bad pieces inside good text, and text cut or overwritten inside a character"""
    data = bytearray(mixed(rng).encode("utf-8"))
    for _ in range(rng.randint(1, 12)):
        at = rng.randint(0, len(data))
        r = rng.random()
        if r < 0.6:
            data[at:at] = rng.choice(BAD)
        elif r < 0.8 and len(data) > 2:
            del data[at - 1:at]
        elif len(data) > 2:
            data[at % len(data)] = rng.randint(0, 255)
    return bytes(data)


KINDS = [(prose, 40), (code, 18), (digits, 5), (spaces, 6), (specials, 8), (combining, 6), (random_points, 5), (controls, 3),
         (emoji, 3), (contractions, 4), (camel, 4), (long_run, 1), (mixed, 10), (broken, 8)]


def documents(seed, n_bytes, with_broken=True):
    """-> list of bytes, about n_bytes in all; every language and kind appears among the first few hundred"""
    rng = random.Random(seed)
    kinds = [k for k, n in KINDS for _ in range(n) if with_broken or k is not broken]
    out, total, langs = [], 0, list(SENTENCES)
    while total < n_bytes:
        kind = rng.choice(kinds)
        if kind is prose:
            doc = prose(rng, langs[len(out) % len(langs)])
        else:
            doc = kind(rng)
        if isinstance(doc, str):
            doc = doc.encode("utf-8")
        out.append(doc)
        total += len(doc)
    return out
