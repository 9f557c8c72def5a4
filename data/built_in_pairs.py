"""The embedded pairs: Chinese questions whose words determine the answers.

Templates are filled with small tables of facts: sums, opposites, colours, where animals live
and what they eat, capitals, kinds of things, measure words, the calendar, greetings by name.
Each fact is asked for in several ways and no question occurs twice, so a model can answer a
held-out question if it has learnt the fact from the others. Nothing is random: the order, which
mixes all kinds, is that of a hash.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

from parity.base.files import write_whole

VERSION = 2  # a change to what is generated must raise this

_DIGITS = "零一二三四五六七八九"
_DAYS = "一二三四五六日"

_OPPOSITES = """
    大 小, 多 少, 高 低, 长 短, 快 慢, 新 旧, 轻 重, 冷 热, 黑 白, 早 晚, 远 近, 胖 瘦, 深 浅,
    厚 薄, 宽 窄, 软 硬, 甜 苦, 香 臭, 开 关, 来 去, 买 卖, 进 出, 前 后, 左 右, 上 下, 真 假,
    强 弱, 粗 细, 干净 肮脏, 安全 危险, 简单 复杂, 容易 困难, 聪明 愚蠢, 勇敢 胆小, 勤劳 懒惰,
    安静 吵闹, 快乐 悲伤, 成功 失败, 开始 结束, 朋友 敌人, 白天 黑夜, 过去 未来, 增加 减少,
    上升 下降, 赞成 反对, 胜利 失利, 美丽 丑陋, 富有 贫穷, 温暖 寒冷, 光明 黑暗, 谦虚 骄傲,
    热闹 冷清
"""
_COLOURS = {
    "红色": "苹果 樱桃 草莓 辣椒 西红柿 消防车 灯笼 国旗",
    "黄色": "香蕉 柠檬 向日葵 玉米 菠萝 小鸡 月亮",
    "绿色": "草地 树叶 黄瓜 菠菜 青蛙 西瓜皮 仙人掌 邮筒",
    "蓝色": "天空 大海 牛仔裤 蓝莓 湖水",
    "白色": "雪花 牛奶 棉花 盐 云朵 豆腐 白纸 米饭",
    "黑色": "煤炭 墨水 乌鸦 轮胎 木耳 头发",
    "紫色": "茄子 葡萄 薰衣草",
    "橙色": "橘子 胡萝卜 南瓜",
    "灰色": "老鼠 水泥 大象 乌云",
    "金色": "金牌 麦田 奖杯",
}
# animal, where it lives, what it eats
_ANIMALS = """
    老虎 森林 肉, 狮子 草原 肉, 斑马 草原 青草, 长颈鹿 草原 树叶, 大熊猫 竹林 竹子,
    骆驼 沙漠 青草, 企鹅 南极 鱼, 北极熊 北极 海豹, 鲨鱼 海洋 鱼, 鲸鱼 海洋 小虾, 海豚 海洋 鱼,
    章鱼 海洋 螃蟹, 兔子 草地 萝卜, 松鼠 森林 松果, 猴子 森林 桃子, 狐狸 森林 兔子, 狼 草原 羊,
    马 农场 干草, 奶牛 农场 青草, 绵羊 农场 青草, 公鸡 农场 谷子, 鸭子 池塘 小鱼,
    青蛙 池塘 虫子, 乌龟 池塘 水草, 蜜蜂 花园 花蜜, 蝴蝶 花园 花蜜, 蚂蚁 地下 面包屑,
    老鹰 高山 老鼠, 猫头鹰 森林 老鼠, 麻雀 屋檐 谷子, 燕子 屋檐 虫子, 鹦鹉 雨林 果子,
    蝙蝠 山洞 虫子, 河马 河流 水草, 鳄鱼 河流 肉, 袋鼠 草原 青草, 考拉 树上 树叶,
    蚯蚓 地下 泥土, 猫 家里 鱼, 狗 家里 骨头
"""
_FLYING = "蜜蜂 蝴蝶 老鹰 猫头鹰 麻雀 燕子 鹦鹉 蝙蝠"
_CAPITALS = """
    中国 北京, 日本 东京, 韩国 首尔, 泰国 曼谷, 越南 河内, 印度 新德里, 法国 巴黎, 德国 柏林,
    英国 伦敦, 西班牙 马德里, 意大利 罗马, 俄罗斯 莫斯科, 希腊 雅典, 埃及 开罗, 美国 华盛顿,
    加拿大 渥太华, 墨西哥 墨西哥城, 古巴 哈瓦那, 巴西 巴西利亚, 秘鲁 利马, 荷兰 阿姆斯特丹,
    瑞典 斯德哥尔摩, 挪威 奥斯陆, 芬兰 赫尔辛基, 丹麦 哥本哈根, 波兰 华沙, 奥地利 维也纳,
    葡萄牙 里斯本, 伊朗 德黑兰, 伊拉克 巴格达, 肯尼亚 内罗毕, 蒙古 乌兰巴托, 尼泊尔 加德满都,
    菲律宾 马尼拉, 新西兰 惠灵顿
"""
_KINDS = {
    "水果": "梨 桃子 西瓜 芒果 荔枝 石榴 柚子",
    "蔬菜": "白菜 土豆 芹菜 洋葱 韭菜 冬瓜 蘑菇",
    "家具": "桌子 椅子 沙发 衣柜 书架 床",
    "乐器": "钢琴 吉他 小提琴 笛子 二胡 琵琶",
    "衣服": "衬衫 裙子 外套 毛衣 裤子 围巾",
    "工具": "锤子 钳子 锯子 螺丝刀 剪刀 斧头",
    "饮料": "咖啡 绿茶 豆浆 可乐 果汁 啤酒",
    "运动": "足球 篮球 游泳 跑步 乒乓球 滑雪",
}
_MEASURES = {
    "本": "书 杂志 词典 小说 日记",
    "张": "纸 照片 地图 车票 床单",
    "只": "鸟 羊 蚊子 小猫 手套",
    "条": "河 路 鱼 裤子 毛巾",
    "辆": "汽车 自行车 卡车 摩托车 出租车",
    "杯": "水 茶 热咖啡 酸奶 白酒",
    "把": "伞 刀 椅子 钥匙 扇子",
    "件": "礼物 衬衫 毛衣 家具 行李",
    "朵": "花 玫瑰 云 牡丹 荷花",
    "座": "山 桥 城市 宝塔 房子",
    "棵": "树 松树 白菜 柳树 小草",
    "台": "电脑 电视 冰箱 洗衣机 相机",
}
# job, where the work is
_JOBS = """
    医生 医院, 护士 医院, 老师 学校, 厨师 饭店, 服务员 餐厅, 农民 田里, 司机 车上, 工人 工厂,
    法官 法院, 律师 事务所, 演员 剧院, 记者 报社, 警察 警察局, 消防员 消防站, 飞行员 飞机上,
    船长 船上, 售货员 商店, 银行职员 银行, 图书管理员 图书馆, 科学家 实验室, 理发师 理发店,
    邮递员 邮局, 导游 景区, 教练 体育馆, 矿工 矿井, 宇航员 空间站, 园丁 花园, 学生 学校
"""
_NAMES = """
    小明 小红 小刚 小芳 小丽 小华 小军 小燕 小龙 小玲 王芳 李伟 张敏 刘洋 陈静 杨帆 赵刚 黄英
    周敏 吴刚 徐静 孙红 马丽 朱红 胡平 郭平 何静 高洁 林红 罗平
"""
# what is said, and the reply
_PHRASES = """
    早上好 早上好, 晚上好 晚上好, 谢谢你 不客气, 对不起 没关系, 再见 明天见, 晚安 做个好梦,
    我饿了 快去吃饭吧, 我累了 早点休息吧, 我渴了 喝点水吧, 我生病了 多喝热水吧,
    我考试通过了 恭喜你, 我迷路了 看看地图吧, 我很无聊 听听音乐吧, 我睡不着 数数羊吧
"""
# a single word without punctuation, and the reply: questions of one token
_SINGLE_WORDS = """
    你好 你好，很高兴认识你。, 您好 您好，很高兴认识您。, 早安 早上好。, 晚安 做个好梦。,
    再见 明天见。, 谢谢 不客气。, 抱歉 没关系。, 对不起 没关系。, 恭喜 谢谢你。, 欢迎 谢谢你。,
    加油 好的。, 好的 好的。
"""
_SEASONS = {"春天": (3, 4, 5), "夏天": (6, 7, 8), "秋天": (9, 10, 11), "冬天": (12, 1, 2)}


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Return questions and answers, no question twice, in an order that mixes all kinds."""
    made = [
        pair
        for kind in (_sums, _opposites, _colours, _animals, _facts, _kinds, _calendar, _people)
        for pair in kind()
    ]
    return tuple(sorted(made, key=lambda pair: hashlib.sha256(pair[0].encode()).digest()))


def write_pairs(path: Path) -> None:
    """Write the pairs, a question, a tab and an answer a line; the same on every machine.

    Raises:
      UsageError: if the file cannot be written.
    """
    text = "".join(f"{question}\t{answer}\n" for question, answer in pairs())
    write_whole(path, text.encode())


def number(value: int) -> str:
    """Return a number of 0 .. 99 in Chinese."""
    tens, ones = divmod(value, 10)
    if not tens:
        return _DIGITS[ones]
    return (_DIGITS[tens] if tens > 1 else "") + "十" + (_DIGITS[ones] if ones else "")


def _sums() -> Iterator[tuple[str, str]]:
    for x in range(1, 10):
        for y in range(1, 10):
            total = x + y
            yield f"{x}加{y}等于几？", f"{x}加{y}等于{total}。"
            yield f"请问{x}加{y}是多少？", f"是{total}。"
            yield f"{x}加{y}等于{total}对吗？", f"对，{x}加{y}等于{total}。"
            yield f"{x}加{y}等于{total + 1}对吗？", f"不对，{x}加{y}等于{total}。"
            yield f"你会不会算{total}减{y}？", f"会，{total}减{y}等于{x}。"
            yield f"{total}减{y}是多少？", f"是{x}。"


def _opposites() -> Iterator[tuple[str, str]]:
    for one, other in _table(_OPPOSITES):
        for x, y in ((one, other), (other, one)):
            yield f"“{x}”的反义词是什么？", f"“{x}”的反义词是“{y}”。"
            yield f"和“{x}”相反的词是哪个？", f"是“{y}”。"
            yield f"“{x}”反过来怎么说？", f"反过来说“{y}”。"


def _colours() -> Iterator[tuple[str, str]]:
    names = list(_COLOURS)
    for place, (colour, things) in enumerate(_COLOURS.items()):
        for shift, x in enumerate(things.split()):
            other = names[(place + 1 + shift) % len(names)]
            yield f"{x}是什么颜色的？", f"{x}是{colour}的。"
            yield f"你知道{x}的颜色吗？", f"知道，是{colour}。"
            yield f"{x}是{colour}的吗？", f"对，{x}是{colour}的。"
            if other != colour:
                yield f"{x}是{other}的吗？", f"不对，{x}是{colour}的。"


def _animals() -> Iterator[tuple[str, str]]:
    for x, place, food in _table(_ANIMALS):
        yield f"{x}住在哪里？", f"{x}住在{place}。"
        yield f"去哪里能看到{x}？", f"去{place}能看到{x}。"
        yield f"{x}吃什么？", f"{x}吃{food}。"
        yield f"给{x}喂什么好？", f"喂{food}吧。"
        flies = x in _FLYING.split()
        yield f"{x}会飞吗？", f"会，{x}有翅膀。" if flies else f"不会，{x}没有翅膀。"


def _facts() -> Iterator[tuple[str, str]]:
    for country, capital in _table(_CAPITALS):
        yield f"{country}的首都是哪里？", f"{country}的首都是{capital}。"
        yield f"{capital}是哪个国家的首都？", f"是{country}的首都。"
        yield f"我想去{country}的首都。", f"那就去{capital}吧。"
        yield f"{capital}在哪个国家？", f"{capital}在{country}。"
        yield f"你去过{capital}吗？", f"去过，{capital}是{country}的首都。"
    for job, place in _table(_JOBS):
        yield f"{job}在哪里上班？", f"{job}在{place}上班。"
        yield f"去哪里找{job}？", f"去{place}找{job}。"
        yield f"{job}的工作在哪里？", f"在{place}。"
        yield f"我想当{job}。", f"那你以后要在{place}上班。"


def _kinds() -> Iterator[tuple[str, str]]:
    names = list(_KINDS)
    for place, (kind, things) in enumerate(_KINDS.items()):
        for shift, x in enumerate(things.split()):
            other = names[(place + 1 + shift % (len(names) - 1)) % len(names)]
            yield f"{x}属于哪一类？", f"{x}属于{kind}。"
            yield f"{x}是{kind}吗？", f"是的，{x}是{kind}。"
            yield f"{x}是{other}吗？", f"不是，{x}是{kind}。"
    for measure, things in _MEASURES.items():
        for x in things.split():
            yield f"{x}的量词是什么？", f"是“{measure}”，一{measure}{x}。"
            yield f"“一个{x}”说得对吗？", f"应该说一{measure}{x}。"
            yield f"两{measure}{x}加一{measure}{x}？", f"一共三{measure}{x}。"


def _calendar() -> Iterator[tuple[str, str]]:
    for place, day in enumerate(_DAYS):
        for word, shift in (("明天", 1), ("昨天", -1), ("后天", 2), ("前天", -2)):
            other = _DAYS[(place + shift) % 7]
            yield f"今天星期{day}，{word}星期几？", f"{word}星期{other}。"
            yield f"如果今天是星期{day}，{word}呢？", f"{word}是星期{other}。"
    for month in range(1, 13):
        season = next(name for name, months in _SEASONS.items() if month in months)
        x = number(month)
        yield f"{x}月是什么季节？", f"{x}月是{season}。"
        yield (
            f"{x}月份冷不冷？",
            {"冬天": "很冷。", "夏天": "不冷，很热。"}.get(season, f"不冷不热，是{season}。"),
        )
        yield f"{x}月的下个月是几月？", f"是{number(month % 12 + 1)}月。"
        yield f"{x}月的上个月是几月？", f"是{number((month - 2) % 12 + 1)}月。"
        for hours in (1, 2, 3):
            later = number((month + hours - 1) % 12 + 1)
            yield f"现在{x}点，{number(hours)}小时以后几点？", f"{later}点。"


def _people() -> Iterator[tuple[str, str]]:
    phrases = _table(_PHRASES)
    for name in _NAMES.split():
        yield f"我叫{name}。", f"{name}你好，很高兴认识你。"
        yield f"我的名字是{name}，你呢？", f"你好{name}，我是机器人。"
        yield f"你认识{name}吗？", f"我不认识{name}。"
        yield f"{name}让我向你问好。", f"请替我谢谢{name}。"
        for said, reply in phrases:
            yield f"我是{name}，{said}。", f"{name}，{reply}。"
    for said, reply in phrases:
        yield f"{said}。", f"{reply}。"
        yield f"{said}！", f"{reply}！"
    for word, reply in _table(_SINGLE_WORDS):
        yield word, reply


def _table(text: str) -> list[list[str]]:
    return [row.split() for row in text.split(",")]
